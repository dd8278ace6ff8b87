"""Where a LoRA's layers are in a network, by the names of diffusers, of the network's makers and of kohya's scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.models.architecture import Shapes
from diffrl.models.family import Family
from diffrl.models.lora_tensors import PREFIXES, START, LoraWeights, first_few

SHIFT_SCALE = re.compile(r"adaLN_modulation[._]1")
"""Layers of the makers' networks that compute shift, then scale, where those of diffusers compute scale, then shift."""


def linear_layers(network: nn.Module) -> dict[str, tuple[int, int]]:
    """Read (out, in) of a network's linear layers by name, whether they have an adapter already or not."""
    return {
        name.removesuffix(".base_layer"): (module.out_features, module.in_features)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and ".lora_" not in name
    }


def spellings(layers: Shapes, family: Family) -> dict[str, tuple[str, ...]]:
    """List the names under which files hold layers.

    Args:
        layers: (out, in) of the network's linear layers, named as in diffusers.
        family: of the network.

    Returns:
        The layers that make up one of the file's, in the order of its rows, by the file's name with underscores for
        dots, as kohya's scripts write it.
    """
    by_name = {_flat(layer): (layer,) for layer in layers}
    if family.comfyui is not None:
        keys = ((family.comfyui(layer), layer) for layer in layers)
        by_name |= {_flat(PREFIXES.sub("", key, count=1)): (layer,) for key, layer in keys if key is not None}
    for stem, (ours, names) in family.original.items():
        for theirs, parts in names.items():
            for number in _numbers(ours, layers) if stem else ("",):
                prefixes = (f"{stem}.{number}.", f"{ours}.{number}.") if stem else ("", "")
                whole = tuple(prefixes[1] + part for part in parts)
                if all(layer in layers for layer in whole):
                    by_name[_flat(prefixes[0] + theirs)] = whole
    return by_name


def fit_lora(opened: LoraWeights, layers: Shapes, family: Family, asked: str = START) -> LoraWeights:
    """Give a file's layers the names that they have in a network; layers that are one in the file are taken apart.

    Args:
        opened: from `open_lora`.
        layers: (out, in) of the network's linear layers, named as in diffusers.
        family: of the network.
        asked: the key or option that names the file, for messages.

    Raises:
        ConfigError: a layer does not reach the network, or is of another size.
    """
    refused = f"{asked} must be a LoRA of this network. Got {opened.file}, "
    known = spellings(layers, family)
    if lost := [name for name in opened.down if _flat(name) not in known]:
        count = len(opened.down)
        which = "nothing reaches it" if len(lost) == count else "a part does not reach it"
        named = f"{len(lost)} of {count} layers: {first_few(lost)}"
        raise ConfigError(
            f"{refused}of which {which}, {named}. {_read_names(layers, family)} Take one of the same base."
        )
    down, up, alpha = dict[str, Tensor](), dict[str, Tensor](), dict[str, float]()
    for name in opened.down:
        for layer, a, b in _parts(opened, name, known[_flat(name)], layers, refused):
            if layer in down:
                raise ConfigError(f"{refused}which names {layer} twice. Leave one of the two out.")
            down[layer], up[layer] = a, b
            alpha[layer] = opened.alpha[name] * len(a) / len(opened.down[name])
    return LoraWeights(down, up, alpha, opened.file, opened.notes)


def _read_names(layers: Shapes, family: Family) -> str:
    """Say by whose names layers are known, such as those of a block."""
    if family.original or family.comfyui is not None:
        return f"Layers of {family.name} are named as in diffusers or by the network's makers."
    inner = next((layer for layer in layers if "blocks." in layer), next(iter(layers), ""))
    return f"Layers of {family.name} are read by their names in diffusers alone, such as {inner}."


def _parts(
    opened: LoraWeights, name: str, parts: tuple[str, ...], layers: Shapes, refused: str
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield a layer of the file as the network's: name, A, B."""
    a, b = opened.down[name], opened.up[name]
    rows, into = [layers[part][0] for part in parts], layers[parts[0]][1]
    if (len(b), a.shape[1]) != (sum(rows), into):
        raise ConfigError(
            f"{refused}whose {name} is {len(b)} x {a.shape[1]}, here {sum(rows)} x {into}. Take one of the same base."
        )
    if SHIFT_SCALE.search(name) and _flat(name) != _flat(parts[0]) and len(b) == 2 * into:
        b = torch.cat(b.chunk(2)[::-1])
    pieces = b.split(rows)
    columns = torch.stack([piece.any(0) for piece in pieces])  # of a B in blocks, as of three LoRAs saved as one
    if bool((columns.sum(0) == 1).all()) and len(set(columns.sum(1).tolist())) == 1:
        yield from ((part, a[c], piece[:, c]) for part, c, piece in zip(parts, columns, pieces, strict=True))
    else:
        yield from ((part, a, piece) for part, piece in zip(parts, pieces, strict=True))


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _numbers(stem: str, layers: Mapping[str, object]) -> list[str]:
    """Return the numbers of a network's blocks of a kind."""
    pattern = re.compile(rf"{re.escape(stem)}\.(\d+)\.")
    return sorted({match[1] for match in map(pattern.match, layers) if match})
