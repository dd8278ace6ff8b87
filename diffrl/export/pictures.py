"""What sampling commands share: how a run's or a pipeline's model is opened, and samples written with prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from diffrl.errors import ConfigError
from diffrl.export.request import ONLY_OF_MODEL, ModelOptions
from diffrl.models.adapter import ModelAdapter
from diffrl.models.families import find_family
from diffrl.models.loading import DTYPES, infer_family, load_adapter
from diffrl.models.lora_file import attach_lora, check_lora
from diffrl.records import Prompt
from diffrl.run.checkpoints import AlignedModel, open_run_model, require_choice
from diffrl.tracking.index import GENERATED_SOURCES, source_file
from diffrl.trees.write import keep_source
from reward_models.media import save_media, to_pil

SAMPLES = "samples.jsonl"


def run_or_model(source: str) -> tuple[Path | None, str | None]:
    """Tell sources apart: (the directory of a run, None), or (None, a pipeline's directory or hub id)."""
    return (Path(source), None) if (Path(source) / "config.yaml").is_file() else (None, source)


def require_run_or_model(command: str, options: ModelOptions) -> None:
    """Refuse both, neither, a pipeline's options beside a run, and a run's beside a pipeline.

    Args:
        command: its name, for the message.
        options: of the command.

    Raises:
        ConfigError: the request does not add up.
    """
    if (options.model is None) == (options.run is None):
        got = "neither. Add one" if options.run is None else "both. Remove one"
        raise ConfigError(f"diffrl {command} takes --model PATH or --run RUN_DIR, and not both. Got {got}.")
    set_here = [_option(name) for name in ONLY_OF_MODEL if getattr(options, name) != getattr(ModelOptions, name)]
    if options.run is not None and set_here:
        *names, last = map(_option, ONLY_OF_MODEL)
        raise ConfigError(
            f"{', '.join(names)} and {last} go with --model: a run has its own. Got --run and {', '.join(set_here)}. "
            f"Remove {', '.join(set_here)}."
        )
    require_choice(options.choice, options.run)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class OpenModel:
    """A model that is ready to sample."""

    adapter: ModelAdapter  # the model
    family: str
    run: AlignedModel | None  # whose model it is, as it was before alignment; None for a pipeline


def open_model(options: ModelOptions, device: torch.device, tell: Callable[[str], None]) -> OpenModel:
    """Load the model of a run or a pipeline.

    Args:
        options: which one.
        device: where it runs.
        tell: takes what the user should know of it.

    Raises:
        ConfigError: there is none, or it cannot be loaded so.
        CheckpointError: the run has no checkpoint that can be used.
    """
    if options.run is None:
        return OpenModel(*open_pipeline(options, device, tell), None)
    run = open_run_model(options.run, device, options.choice)
    for message in run.messages:
        tell(message)
    return OpenModel(run.adapter, run.config.model.family, run)


def open_pipeline(
    options: ModelOptions, device: torch.device, tell: Callable[[str], None] = print
) -> tuple[ModelAdapter, str]:
    """Load a pipeline as it is, a LoRA at scale 1; also returns the name of its family.

    Args:
        options: the pipeline, and how it is loaded.
        device: where it runs.
        tell: takes what the user should know of the LoRA.

    Raises:
        ConfigError: it cannot be loaded so.
    """
    model, lora = str(options.model), options.lora
    if options.dtype not in DTYPES:
        raise ConfigError(f"--dtype must be one of {', '.join(DTYPES)}. Got {options.dtype!r}.")
    name = options.family or infer_family(model)
    if options.frames is not None and find_family(name).fps is None:
        raise ConfigError(f"--frames needs a family that generates videos. Got one of {name}. Remove --frames.")
    if options.negative_prompt is not None and (why := find_family(name).without_negative_prompt()):
        raise ConfigError(f"--negative-prompt needs a family that reads one. Got {name}, {why}. Leave it out.")
    if lora is not None:
        for _ in check_lora(lora, model, find_family(name), "--lora"):
            pass  # refuses it before minutes of loading
    sizes: dict[str, Any] = {"height": options.height, "width": options.width, "frames": options.frames}
    adapter = load_adapter(
        name,
        model,
        dtype=options.dtype,
        device=device,
        variant=options.variant,
        negative_prompt=options.negative_prompt,
        **sizes,
    )
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
