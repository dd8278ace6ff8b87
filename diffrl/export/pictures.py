"""What drawing commands share: a pipeline that belongs to no run, and samples written with their prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from diffrl.errors import ConfigError
from diffrl.models.adapter import ModelAdapter
from diffrl.models.families import find_family
from diffrl.models.loading import DTYPES, infer_family, load_adapter
from diffrl.models.lora_file import attach_lora, check_lora
from diffrl.records import Prompt
from diffrl.run.checkpoints import NEWEST, Choice, require_choice
from diffrl.tracking.index import GENERATED_SOURCES, source_file
from diffrl.trees.write import keep_source
from reward_models.media import save_media, to_pil

SAMPLES = "samples.jsonl"


def run_or_model(source: str) -> tuple[Path | None, str | None]:
    """What a source of pictures is: (the directory of a run, None), or (None, a pipeline's directory or hub id)."""
    return (Path(source), None) if (Path(source) / "config.yaml").is_file() else (None, source)


def require_run_or_model(
    command: str, run: Path | None, model: str | None, only_of_model: Mapping[str, Any], choice: Choice = NEWEST
) -> None:
    """Refuse both, neither, a pipeline's options beside a run, and a run's beside a pipeline.

    Args:
        command: its name, for the message.
        run: a run's directory.
        model: a pipeline.
        only_of_model: options that a run has of its own, by name; None or False where not given.
        choice: of the run's checkpoints.

    Raises:
        ConfigError: the request does not add up.
    """
    if (model is None) == (run is None):
        got = "neither. Add one" if run is None else "both. Remove one"
        raise ConfigError(f"diffrl {command} takes --model PATH or --run RUN_DIR, and not both. Got {got}.")
    if run is not None and any(only_of_model.values()):
        names, named = list(only_of_model), ", ".join(name for name, value in only_of_model.items() if value)
        raise ConfigError(
            f"{', '.join(names[:-1])} and {names[-1]} go with --model: a run has its own. Got --run and {named}. "
            f"Remove {named}."
        )
    require_choice(choice, run)


def open_pipeline(
    model: str,
    family: str | None,
    dtype: str,
    device: torch.device,
    height: int | None,
    width: int | None,
    frames: int | None,
    lora: str | None = None,
    tell: Callable[[str], None] = print,
    *,
    variant: str | None = None,
) -> tuple[ModelAdapter, str]:
    """A pipeline as it is, and the name of its family.

    Args:
        model: directory or hub id.
        family: None: what the pipeline's class says.
        dtype: of the denoiser, a name of `DTYPES`.
        device: where it runs.
        height: in pixels; None: the model's own, and so for the others.
        width: in pixels.
        frames: of a video.
        lora: a file or folder, loaded at scale 1.
        tell: is told what the user should know of the LoRA.
        variant: of its files of weights.

    Raises:
        ConfigError: it cannot be loaded so.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype must be one of {', '.join(DTYPES)}. Got {dtype!r}.")
    name = family or infer_family(model)
    if frames is not None and find_family(name).fps is None:
        raise ConfigError(f"--frames needs a family that generates videos. Got one of {name}. Remove --frames.")
    if lora is not None:
        for _ in check_lora(lora, model, find_family(name), "--lora"):
            pass  # refuses it before minutes of loading
    sizes = {"height": height, "width": width, "frames": frames}
    adapter = load_adapter(name, model, dtype=dtype, device=device, variant=variant, **sizes)
    if lora is not None:
        for note in attach_lora(adapter.trainable_modules(), find_family(name), lora, "--lora"):
            tell(note)
    return adapter, name


def write_sample(
    folder: Path,
    index: TextIO,
    image: Tensor,
    prompt: Prompt,
    group: int,
    number: int,
    seed: int,
    fps: float | None,
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Write `<group>-<number>.png` or `.webp`, its line of samples.jsonl, and a small copy of the image that it edits.

    Args:
        folder: of the pictures.
        index: samples.jsonl, open for writing.
        image: (3, H, W) or (F, 3, H, W) uint8.
        prompt: what it was drawn for.
        group: the prompt's place in the list.
        number: of the sample, among those of its prompt.
        seed: of the noise.
        fps: frames per second of videos.
        beside: more for the line.
    """
    name = f"{group:04d}-{number}.{'png' if image.ndim == 3 else 'webp'}"
    if image.ndim == 3:
        to_pil(image).save(folder / name)
    else:
        save_media(image, folder / name, fps or 16.0)
    if (copy := source_file(prompt.beside, GENERATED_SOURCES)) is not None and prompt.source is not None:
        keep_source(prompt.source, folder / copy)
    row = {**prompt.beside, "file": name, "prompt": prompt.text, "seed": seed, "number": number, **(beside or {})}
    index.write(json.dumps(row) + "\n")
    index.flush()  # what is killed later has listed it
