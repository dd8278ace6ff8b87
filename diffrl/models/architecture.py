"""What a pipeline is made of, from its file headers or from what is known of it on the hub; no weights are read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from diffrl.bundled import pipeline_folder
from diffrl.errors import ConfigError
from diffrl.models.files import read_object
from diffrl.models.published import Component, published_pipeline
from reward_models.common.messages import show
from reward_models.common.reading import parse_json, require_file

Shapes = Mapping[str, tuple[int, ...]]

WEIGHTS = re.compile(r"(?:diffusion_pytorch_model|model)(?:\.(\w+))?(?:-\d+-of-\d+)?\.safetensors")
"""A component's weights as diffusers and transformers name them; their group is a variant such as fp16, if any."""

MOST_HEADER = 100_000_000
"""Bytes of a safetensors file's header, as its own library has it."""

NETWORKS = ("transformer", "transformer_2")
"""Components that denoise; a pipeline of two takes one for the high noise levels and one for the low ones."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a pipeline.

    Args:
        shapes: of every tensor, by component.
        configs: of every component, as in its config.json; empty where there is none.
        options: of the pipeline, as in its model_index.json.
    """

    shapes: Mapping[str, Shapes]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def networks(self) -> tuple[str, ...]:
        """The components that denoise, and so train."""
        two = self.options.get("boundary_ratio") is not None
        return tuple(name for name in NETWORKS[: 1 + two] if name in self.shapes)


def describe_pipeline(path: str) -> Architecture | None:
    """Return sizes of a pipeline's folder, or of a published one by its name on the hub; None if neither is known here.

    Raises:
        ConfigError: a file of the folder is torn.
    """
    folder = pipeline_folder(path)
    if folder.is_dir():
        shapes = component_shapes(folder)
        configs = {name: read_object(folder / name / "config.json", missing={}) for name in shapes}
        architecture = Architecture(shapes, configs, read_object(folder / "model_index.json", missing={}))
        return architecture if "transformer" in shapes else None
    return _published(path)


@cache
def _published(name: str) -> Architecture | None:
    known = published_pipeline(name)
    if known is None:
        return None
    shapes = {part: _shapes_of(component) for part, component in known.components.items()}
    return Architecture(shapes, {part: one.config for part, one in known.components.items()}, known.options)


def _shapes_of(component: Component) -> Shapes:
    """Return shapes of a component's weights, tied ones once, on the meta device: nothing is allocated."""
    import torch
    from torch import nn

    with torch.device("meta"):
        module: nn.Module = component.build()
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    saved = module.state_dict().keys()
    return {name: tuple(tensor.shape) for name, tensor in named.items() if name in saved}


def component_shapes(pipeline: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return tensor shapes of each component of a pipeline's folder; empty if there is no such folder."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for part in sorted({file.parent for file in pipeline.glob("*/*.safetensors")}):
        for file in weights_of(part, None):
            shapes.setdefault(part.name, {}).update(header_shapes(file))
    return shapes


def weights_of(part: Path, variant: str | None) -> list[Path]:
    """List a component's safetensors files of a variant; without any, the plain ones, else those of another variant.

    All variants have the same shapes.
    """
    named = {file: match[1] for file in sorted(part.glob("*.safetensors")) if (match := WEIGHTS.fullmatch(file.name))}
    kinds = set(named.values())
    kind = next((one for one in (variant, None) if one in kinds), min((one for one in kinds if one), default=None))
    return [file for file, file_variant in named.items() if file_variant == kind]


def stored_numbers(pipeline: Path) -> dict[str, dict[str, int]]:
    """Return how many numbers of each dtype (F32, BF16, ...) the files of a pipeline's folder hold, by component."""
    counts: dict[str, dict[str, int]] = {}
    for file in sorted(pipeline.glob("*/*.safetensors")):
        if WEIGHTS.fullmatch(file.name):
            numbers = counts.setdefault(file.parent.name, {})
            for shape, dtype in _header(file).values():
                numbers[dtype] = numbers.get(dtype, 0) + math.prod(shape)
    return counts


def header_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a safetensors file, from its header.

    Raises:
        ConfigError: the file is torn or no safetensors file.
    """
    return {name: shape for name, (shape, _) in _header(path).items()}


def _header(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name, shape and dtype of every tensor; raises as `header_shapes` does."""
    try:
        require_file(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= path.stat().st_size - 8:
                raise ValueError(f"the header cannot have {length} bytes")
            if length > MOST_HEADER:
                raise ValueError(f"it has {length:,} bytes, and at most {MOST_HEADER:,} are read")
            header = parse_json(file.read(length).decode("utf-8"))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        ends = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        if path.stat().st_size < ends:
            raise ValueError(f"it ends after {path.stat().st_size:,} of {ends:,} bytes")
        return {name: (_shape(entry["shape"]), str(entry.get("dtype"))) for name, entry in tensors.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} must be a safetensors file. It is torn: {error}. Fetch it again.") from error


def _shape(sizes: Any) -> tuple[int, ...]:
    if not all(type(size) is int and 0 <= size < 2**48 for size in sizes):
        raise ValueError(f"{show(sizes)} is no shape")
    return tuple(sizes)
