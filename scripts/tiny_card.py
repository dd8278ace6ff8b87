"""Measure a saved tiny pipeline and write its model card: every number on a card is measured.

A world says what it measures (`World.measure`); its card is a template in `scripts/cards/`. Builders call this after
training, on the files loaded back from disk in fp32.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Score = dict[str, float]
Text = TypeVar("Text")

CARDS = Path(__file__).parent / "cards"


def in_turn(texts: Sequence[Text], count: int) -> list[Text]:
    """Return `count` of some prompts in turn, so that each occurs about equally often."""
    return [texts[i % len(texts)] for i in range(count)]


def stack(pictures: Iterable[Any]) -> Tensor:
    """Return PIL or numpy pictures as uint8 (N, 3, H, W), and clips as (N, F, 3, H, W)."""
    return torch.from_numpy(np.stack([np.asarray(image) for image in pictures])).movedim(-1, -3).contiguous()


def means(parts: Mapping[str, Tensor]) -> Score:
    """Return the means of a scorer's parts, each (N,), as they are recorded."""
    return {name: round(float(values.mean()), 4) for name, values in parts.items()}


def batches(noise: Tensor, texts: Sequence[str], size: int, draw: Callable[..., Any], **options: Any) -> list[Any]:
    """Return what a stock pipeline draws of noise (N, ...) and N prompts, `size` at once."""
    generated = []
    for start in range(0, len(texts), size):
        rows = slice(start, start + size)
        generated.append(draw(prompt=list(texts[rows]), latents=noise[rows], **options))
    return generated


def facts(pipeline: Any, folder: Path, packages: Sequence[str]) -> dict[str, Any]:
    """Return how large a saved pipeline is, and what it was measured with."""
    networks = (name for name in ("transformer", "vae", "text_encoder", "text_encoder_2") if hasattr(pipeline, name))
    return {
        "parameters": {name: sum(p.numel() for p in getattr(pipeline, name).parameters()) for name in networks},
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers", *packages)},
    }


def describe_machine(device: torch.device, threads: int) -> str:
    """Return a machine in words, without names of hosts."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"a {os.cpu_count()}-core {platform.machine()} CPU, {threads} threads"


def write_record(folder: Path, record: Mapping[str, Any], world: Any) -> None:
    """Write `build.json` and the card of a world's pipeline."""
    (folder / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(record, world), encoding="utf-8")


def card(record: Mapping[str, Any], world: Any) -> str:
    """Return the text of a world's card: its template with what was measured."""
    speed = record[f"milliseconds_per_{world.medium}"]
    rows = (
        (name, *(f"{score[part]:.3f}" for part in world.parts), speed.get(name, ""))
        for name, score in record["scores"].items()
    )
    values = {
        **record,
        "scores": "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows),
        "parameters": ", ".join(f"{name} {count / 1e6:.2f} M" for name, count in record["parameters"].items()),
        "versions": ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
        "megabytes": record["bytes"] / 1e6,
        **world.card_values(record),
    }
    return (CARDS / f"{world.name}.md").read_text(encoding="utf-8").format(**values)


def measure_again(folder: Path, samples: int, world: Any) -> dict[str, Any]:
    """Score a saved pipeline by today's scorer and rewrite its card; what training took is kept as it is recorded.

    Returns:
        What `build.json` holds now.

    Raises:
        FileNotFoundError: the folder has no `build.json`.
    """
    record = json.loads((folder / "build.json").read_text(encoding="utf-8"))
    record |= world.measure(folder, samples, seed=record["seed"] + 1)
    write_record(folder, record, world)
    return dict(record)
