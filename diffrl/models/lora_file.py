"""LoRA files of other makers, read by diffusers' own converters: which layers they change, at which rank and scale."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.models.architecture import NETWORKS, Shapes, header_shapes
from diffrl.models.families import FAMILIES
from diffrl.models.targets import names_layer
from reward_models.messages import cut, show

FIRST_LORA = "pytorch_lora_weights.safetensors"
"""What diffusers calls a LoRA in a folder of its own."""

SECOND_LORA = "pytorch_lora_weights_2.safetensors"
"""The file of the second transformer's LoRA, where a pipeline has two (Wan 2.2)."""

START = "model.lora.start.path"

WITHOUT = ("use_dora", "use_rslora", "lora_bias", "rank_pattern", "alpha_pattern", "modules_to_save", "bias")
"""Of peft's settings, what makes more of a LoRA than W + (alpha / rank) B A with one rank and one alpha."""


@dataclass(frozen=True)
class LoraWeights:
    """A LoRA of one network: W + (alpha / rank) B A for some of its linear layers.

    Args:
        down: A of each layer by the layer's name, (rank, in).
        up: B, (out, rank).
        alpha: the same for all layers.
        file: where it is from.
    """

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    alpha: float
    file: Path

    @property
    def rank(self) -> int:
        """The same for all layers."""
        return len(next(iter(self.down.values())))


def lora_files(start: str, networks: Sequence[str], asked: str = START) -> dict[str, Path]:
    """The files of a LoRA, one for each network.

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
        files = dict(zip(networks, (path / FIRST_LORA, path / SECOND_LORA), strict=True))
        if missing := [file.name for file in files.values() if not file.is_file()]:
            raise ConfigError(
                f"{asked} must be a folder with a LoRA for each of the pipeline's two networks, "
                f"{FIRST_LORA} and {SECOND_LORA}. Got {show(start)} without {' and '.join(missing)}. Put them there."
            )
        return files
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
        named = [file for file in found if file.name == FIRST_LORA] or found
        if len(named) != 1:
            raise ConfigError(
                f"{asked} must name one LoRA. Got the folder {show(start)}, which has "
                f"{', '.join(file.name for file in found[:8]) or 'no safetensors file'}. Name the file."
            )
        path = named[0]
    return {networks[0]: path}


def sha256_of(files: Mapping[str, Path]) -> str:
    """Of the files' bytes, one after the other.

    Raises:
        ConfigError: one cannot be read.
    """
    digest = hashlib.sha256()
    for file in files.values():
        header_shapes(file)  # a pipe would never end
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def lora_loader(pipeline_class: Any) -> Any:
    """The class of diffusers that reads and writes LoRAs of a pipeline: itself, or what its family names instead."""
    name = pipeline_class.__name__
    instead = next((family.lora_loader for family in FAMILIES.values() if name in family.pipelines), None)
    return pipeline_class if instead is None else getattr(importlib.import_module("diffusers.loaders"), instead)


def read_lora(file: Path, pipeline_class: Any, asked: str = START) -> LoraWeights:
    """A LoRA of a pipeline's transformer, whatever trainer wrote it: the class's own converters read it.

    Args:
        file: safetensors.
        pipeline_class: of diffusers.
        asked: the key or option that names it, for messages.

    Raises:
        ConfigError: it is none of this pipeline's transformer, or more than a LoRA with one rank and one alpha.
    """
    refused = f"{asked} must be a LoRA of a {pipeline_class.__name__}'s transformer. Got {file}, "
    header_shapes(file)
    loader = lora_loader(pipeline_class)
    if not hasattr(loader, "lora_state_dict"):
        raise ConfigError(
            f"{asked} must be left out for a {pipeline_class.__name__}, which loads no LoRA. Got {file}. Remove it."
        )
    takes = inspect.signature(loader.lora_state_dict).parameters
    options = {"return_alphas": True} if "return_alphas" in takes else {}  # else multiplied in, or among the tensors
    try:
        tensors, *alphas, metadata = loader.lora_state_dict(
            str(file), use_safetensors=True, local_files_only=True, return_lora_metadata=True, **options
        )
    except Exception as error:  # what converters raise for a file that they do not know has no common class
        raise ConfigError(f"{refused}which diffusers cannot read: {cut(str(error), 300)}.") from error
    down, up, others = dict[str, Tensor](), dict[str, Tensor](), list[str]()
    for name, tensor in tensors.items():
        layer, _, kind = name.removeprefix("transformer.").rpartition(".lora_")
        side = {"A.weight": down, "down.weight": down, "B.weight": up, "up.weight": up}.get(kind)
        if side is None or not name.startswith("transformer.") or tensor.ndim != 2:
            others.append(name)
        else:
            side[layer] = tensor.float()
    settings = {k.removeprefix("transformer."): v for k, v in (metadata or {}).items() if k.startswith("transformer.")}
    ranks = sorted({len(a) for a in down.values()} | {b.shape[1] for b in up.values()})
    odd = [f"{key}={show(settings[key])}" for key in WITHOUT if settings.get(key) not in (None, False, {}, [], "none")]
    if len(ranks) > 1:
        odd.append(f"ranks {', '.join(map(str, ranks))}")
    if any(alphas):
        odd.append("an alpha for each layer")
    if odd:
        raise ConfigError(f"{refused}which has {'; '.join(odd)}. One rank and one alpha for all layers can be trained.")
    if others or down.keys() != up.keys() or not down:
        strange = sorted({*others, *(down.keys() ^ up.keys())})
        which = "which also holds" if down else "which holds no such layers but"
        named = ", ".join(strange[:3]) or "nothing"
        raise ConfigError(
            f"{refused}{which} {named}. Only the transformer's layers are trained: take a file with these alone."
        )
    return LoraWeights(down, up, float(settings.get("lora_alpha", ranks[0])), file)


def require_fitting(found: LoraWeights, layers: Shapes, rank: int, targets: Sequence[str]) -> None:
    """Refuse a LoRA that is not of exactly the layers and the rank that a configuration trains.

    Args:
        found: the LoRA.
        layers: (out, in) of the network's linear layers by name: all, or those that get a LoRA.
        rank: of `model.lora`.
        targets: of `model.lora`.

    Raises:
        ConfigError: lists what differs.
    """
    wrong = []
    if found.rank != rank:
        wrong.append(
            f"model.lora.rank must be that of model.lora.start. Got {rank}, and {found.file} has {found.rank}. Set "
            f"model.lora.rank={found.rank}."
        )
    wanted = {name for name in layers if any(names_layer(target, name) for target in targets)}
    if wanted != found.down.keys():
        more, fewer = sorted(found.down.keys() - wanted), sorted(wanted - found.down.keys())
        differs = [f"also has {', '.join(more[:3])}"] * bool(more) + [f"lacks {', '.join(fewer[:3])}"] * bool(fewer)
        wrong.append(
            f"model.lora.targets must name the layers of model.lora.start. Got {', '.join(targets)}, and {found.file} "
            f"{' and '.join(differs)}. Its layers: {', '.join(sorted({_ending(n) for n in found.down})[:20])}."
        )
    wrong += _other_shapes(found, layers, wanted, START)
    if wrong:
        raise ConfigError(wrong)


def attach_lora(pipeline: Any, networks: Mapping[str, nn.Module], start: str, asked: str) -> None:
    """Load a LoRA to draw with: by diffusers' own loader, at scale 1, for each of a pipeline's networks.

    Args:
        pipeline: of diffusers; of the LoRA's base, or of a sibling with the same layers (a distilled one).
        networks: that denoise, by their names in the pipeline.
        start: as for `lora_files`.
        asked: the option that names it, for messages.

    Raises:
        ConfigError: it is not there, or not of these layers.
    """
    for network, file in lora_files(start, list(networks), asked).items():
        found = read_lora(file, type(pipeline), asked)
        modules = networks[network].named_modules()
        layers = {name: tuple(one.weight.shape) for name, one in modules if isinstance(one, nn.Linear)}
        if wrong := _other_shapes(found, layers, found.down.keys(), asked):
            raise ConfigError(wrong)
        if (loader := lora_loader(type(pipeline))) is not type(pipeline):
            weights, metadata = loader.lora_state_dict(str(file), return_lora_metadata=True)
            loader.load_lora_into_transformer(weights, networks[network], metadata=metadata)
            continue
        second = {"load_into_transformer_2": True} if network == NETWORKS[1] else {}
        pipeline.load_lora_weights(str(file), **second)


def _other_shapes(found: LoraWeights, layers: Shapes, names: Collection[str], asked: str) -> list[str]:
    """What is wrong with the first of a LoRA's layers that this network has otherwise, or not at all; else nothing."""
    for name in sorted(found.down.keys() & names):
        shape, own = (len(found.up[name]), found.down[name].shape[1]), layers.get(name)
        if own is None or shape != tuple(own):
            here = "here there is none" if own is None else f"here {own[0]} x {own[1]}"
            return [
                f"{asked} must be a LoRA of this network. Got {found.file}, whose {name} is {shape[0]} x {shape[1]}, "
                f"{here}. Take one of the same base."
            ]
    return []


def _ending(layer: str) -> str:
    """A layer's name within its block: what stands behind the block's number."""
    parts = layer.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[number + 1 :]) or layer
