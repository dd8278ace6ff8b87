"""Bytes and numbers of a network's weights, from the shapes of its tensors alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffrl.models.architecture import Shapes
from diffrl.models.targets import names_layer
from diffrl.precision.layers import matches

BYTES = {"float32": 4, "bfloat16": 2}

BUFFERS = ("pos_embed.pos_embed",)
"""Tensors of a transformer's file that are no parameters: SD3's fixed position table, tens of millions of numbers."""


def count_parameters(shapes: Shapes) -> int:
    """Return numbers in all tensors that are parameters."""
    return sum(math.prod(shape) for name, shape in shapes.items() if name not in BUFFERS)


def lora_parameters(shapes: Shapes, targets: Sequence[str], rank: int) -> int:
    """Count parameters of adapters of this rank on the linear layers that targets name, as peft matches them."""
    chosen = [shape for layer, shape in layers_of(shapes) if any(names_layer(target, layer) for target in targets)]
    return sum(rank * sum(shape) for shape in chosen if len(shape) == 2)


def quantised_bytes(
    shapes: Shapes, exclude: Sequence[str], quantised: float, rest: float, pointwise: bool = False
) -> int:
    """Return bytes of a network whose linear layers are quantised, but for those of the patterns.

    Args:
        shapes: of its tensors.
        exclude: patterns of layers that stay; see `precision.layers.matches`.
        quantised: bytes of a quantised weight.
        rest: bytes of any other number.
        pointwise: quantise 1 x 1 convolutions too.
    """
    low = sum(
        math.prod(shape)
        for layer, shape in layers_of(shapes)
        if (len(shape) == 2 or (pointwise and len(shape) == 4 and shape[2:] == (1, 1)))
        and not any(matches(pattern, layer) for pattern in exclude)
    )
    return int(low * quantised + (sum(map(math.prod, shapes.values())) - low) * rest)


def layers_of(shapes: Shapes) -> list[tuple[str, tuple[int, ...]]]:
    """Return the layers with a weight, and its shape."""
    return [(name.removesuffix(".weight"), shape) for name, shape in shapes.items() if name.endswith(".weight")]
