"""LoRA files: which they are, for which network, and how they get there: one reader for training and generating."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from diffrl.errors import ConfigError
from diffrl.models.architecture import Shapes, describe_pipeline, header_shapes
from diffrl.models.families import FAMILIES
from diffrl.models.family import Family
from diffrl.models.lora import PEFT_LORA, attach_matrices
from diffrl.models.lora_alpha import PEFT_CONFIG
from diffrl.models.lora_names import fit_lora, linear_layers
from diffrl.models.lora_tensors import START, LoraWeights, first_few, has_peft_layout, open_lora
from diffrl.models.targets import names_layer
from reward_models.common.messages import show

FIRST_LORA = "pytorch_lora_weights.safetensors"
"""What diffusers calls a LoRA in a folder of its own."""

SECOND_LORA = "pytorch_lora_weights_2.safetensors"
"""The file of the second transformer's LoRA, where a pipeline has two (Wan 2.2)."""

FIRST_COMFYUI, SECOND_COMFYUI = "comfyui.safetensors", "comfyui_2.safetensors"
"""The same with ComfyUI's keys."""

PEFT_FOLDER, SECOND_PEFT_FOLDER = "peft", "peft_2"
"""Folders with the same as peft writes it."""

PICKLES = re.compile(rb"(?:PK\x03\x04|\x80[\x02-\x05])(?!.{4,6}\{)", re.DOTALL)
"""How a pickle begins, as torch.save writes it now and did once; a safetensors file has a { at its ninth byte."""


def lora_files(start: str, networks: Sequence[str], asked: str = START) -> dict[str, Path]:
    """Return the files of a LoRA, one for each network.

    Args:
        start: a safetensors file, or a folder with one; of two networks, a folder as `diffrl export` writes it.
        networks: names of the pipeline's trained networks.
        asked: the key or option that names it, for messages.

    Raises:
        ConfigError: they are not there.
    """
    path = Path(start)
    if not path.exists():
        raise ConfigError(
            f"{asked} must be a LoRA's file or folder on this machine. Got {show(start)}, which does not "
            "exist. Check the spelling; one on the hub must be fetched first: hf download NAME --local-dir FOLDER."
        )
    if len(networks) > 1:
        peft = (f"{PEFT_FOLDER}/{PEFT_LORA}", f"{SECOND_PEFT_FOLDER}/{PEFT_LORA}")
        pairs = ((FIRST_LORA, SECOND_LORA), (FIRST_COMFYUI, SECOND_COMFYUI), peft)
        first = next((pair for pair in pairs if all((path / name).is_file() for name in pair)), pairs[0])
        files = {network: path / name for network, name in zip(networks, first, strict=True)}
        if missing := [file.name for file in files.values() if not file.is_file()]:
            raise ConfigError(
                f"{asked} must be a folder with a LoRA for each of the pipeline's two networks, "
                f"{FIRST_LORA} and {SECOND_LORA}. Got {show(start)} without {' and '.join(missing)}. Put them there."
            )
        return files
    if path.is_dir():
        paths = sorted(path.glob("*.safetensors")) or sorted(path.glob(f"*/{PEFT_LORA}"))
        named = [path / name for name in (FIRST_LORA, PEFT_LORA) if (path / name).is_file()][:1] or paths
        named = named or sorted(path.glob("*.bin"))  # which is refused for what it is
        if len(named) != 1:
            here = ", ".join(str(file.relative_to(path)) for file in paths[:8]) or "no safetensors file"
            raise ConfigError(
                f"{asked} must name one LoRA. Got the folder {show(start)}, which has {here}. Name the file."
            )
        path = named[0]
    _refuse_pickle(path, asked)
    return {networks[0]: path}


def sha256_of(files: Mapping[str, Path]) -> str:
    """Digest the files' bytes, one after the other, each with peft's configuration if its alpha is there.

    Raises:
        ConfigError: one cannot be read.
    """
    digest = hashlib.sha256()
    for file in files.values():
        beside = file.parent / PEFT_CONFIG
        peft = has_peft_layout(file, header_shapes(file))  # which reads no pipe: it would never end
        for part in (file, beside) if peft and beside.is_file() else (file,):
            with part.open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def lora_loader(pipeline_class: Any) -> Any:
    """Return the class of diffusers that writes LoRAs of a pipeline: itself, or what its family names instead."""
    name = pipeline_class.__name__
    instead = next((family.lora_loader for family in FAMILIES.values() if name in family.pipelines), None)
    return pipeline_class if instead is None else getattr(importlib.import_module("diffusers.loaders"), instead)


def read_lora(file: Path, layers: Shapes, family: Family, asked: str = START) -> LoraWeights:
    """Read a LoRA of a network, whatever trainer wrote it.

    Args:
        file: safetensors.
        layers: (out, in) of the network's linear layers, named as in diffusers.
        family: of the network.
        asked: the key or option that names the file, for messages.

    Raises:
        ConfigError: it is none, or none of this network.
    """
    return fit_lora(open_lora(file, asked), layers, family, asked)


def check_lora(
    start: str, pipeline: str, family: Family, asked: str = START
) -> Iterator[tuple[LoraWeights, Shapes | None]]:
    """Read a LoRA as far as that can be done without loading its pipeline.

    Args:
        start: as for `lora_files`.
        pipeline: its folder, or its name on the hub.
        family: of the pipeline.
        asked: the key or option that names the LoRA, for messages.

    Yields:
        For each network the LoRA and the (out, in) of the network's layers; None while nothing is known of them.

    Raises:
        ConfigError: it is none, or none of this network.
    """
    known = describe_pipeline(pipeline)
    networks = ("transformer",) if known is None else known.networks
    for network, file in lora_files(start, networks, asked).items():
        if known is None:
            yield open_lora(file, asked), None
        else:
            weights = known.shapes[network].items()
            layers = {key.removesuffix(".weight"): shape for key, shape in weights if len(shape) == 2}
            yield read_lora(file, layers, family, asked), layers


def require_fitting(lora: LoraWeights, layers: Shapes, rank: int, targets: Sequence[str]) -> None:
    """Refuse a LoRA that is not of exactly the layers and the rank that a configuration trains.

    Args:
        lora: the LoRA.
        layers: (out, in) of the network's linear layers by name.
        rank: of `model.lora`.
        targets: of `model.lora`.

    Raises:
        ConfigError: lists what differs.
    """
    wrong = []
    if len(lora.ranks) > 1:
        wrong.append(
            f"model.lora.start.path must have one rank. {lora.file} has ranks {', '.join(map(str, lora.ranks))}, and "
            "model.lora.rank is one rank for all layers, of weights and optimiser alike. Resize it to one rank."
        )
    elif lora.ranks != [rank]:
        wrong.append(
            f"model.lora.rank must be that of model.lora.start. Got {rank}, and {lora.file} has {lora.ranks[0]}. Set "
            f"model.lora.rank={lora.ranks[0]}."
        )
    wanted = {name for name in layers if any(names_layer(target, name) for target in targets)}
    if wanted != lora.down.keys():
        more, fewer = sorted(lora.down.keys() - wanted), sorted(wanted - lora.down.keys())
        differs = [f"also has {first_few(more)}"] * bool(more) + [f"lacks {first_few(fewer)}"] * bool(fewer)
        wrong.append(
            f"model.lora.targets must name the layers of model.lora.start. Got {', '.join(targets)}, and {lora.file} "
            f"{' and '.join(differs)}. Its layers: {', '.join(sorted({_ending(n) for n in lora.down})[:20])}."
        )
    if wrong:
        raise ConfigError(wrong)


def attach_lora(networks: Mapping[str, nn.Module], family: Family, start: str, asked: str) -> list[str]:
    """Load a LoRA to generate with, at scale 1, into each of a pipeline's networks.

    Args:
        networks: that denoise, by their names in the pipeline; of the LoRA's base, or of a sibling with the same layers
            (a distilled one).
        family: of the pipeline.
        start: as for `lora_files`.
        asked: the option that names it, for messages.

    Returns:
        What the user should know of it.

    Raises:
        ConfigError: it is not there, or not of these layers.
    """
    notes: list[str] = []
    for network, file in lora_files(start, list(networks), asked).items():
        weights = read_lora(file, linear_layers(networks[network]), family, asked)
        attach_matrices(networks[network], weights.down, weights.up, weights.alpha)
        notes += weights.notes
    return notes


def _refuse_pickle(file: Path, asked: str) -> None:
    """Refuse a file that may run code where it is read.

    Raises:
        ConfigError: says what it is.
    """
    if file.is_file():
        with file.open("rb") as content:
            pickled = PICKLES.match(content.read(9))
        if pickled or file.suffix in (".bin", ".pt", ".pth", ".ckpt"):
            raise ConfigError(
                f"{asked} must be a safetensors file. Got {show(str(file))}, a pickle, which may run code where it is "
                "read. Convert it where you trust it: safetensors.torch.save_file(torch.load(FILE), NEW)."
            )


def _ending(layer: str) -> str:
    """Return a layer's name within its block: what stands behind the block's number."""
    parts = layer.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[number + 1 :]) or layer
