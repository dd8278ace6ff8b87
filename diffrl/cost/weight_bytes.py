"""Bytes and numbers of a network's weights, from the shapes of its tensors alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from diffrl.cost.rollout_size import FLOAT32
from diffrl.models.architecture import Shapes
from diffrl.models.targets import names_layer
from diffrl.precision.facts import dtype_name_around

BYTES = {"float32": 4, "bfloat16": 2}
COPY_BYTES: Mapping[str, float] = {
    "bfloat16": 2.0,
    "int8": 1.0,
    "fp8": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes of a weight of the exploring copy, block scales included, by precision: one for each that is registered."""

BUFFERS = ("pos_embed.pos_embed",)
"""Tensors of a transformer's file that are no parameters: SD3's fixed position table, tens of millions of numbers."""


def copy_bytes(precision: str, engine: str, device: str) -> tuple[float, float]:
    """Return the bytes of a quantised weight and of any other number of an exploring copy.

    Args:
        precision: a key of `COPY_BYTES`.
        engine: as configured. The emulated weights are as wide as the network around them, modelopt's are float32, and
            transformer-engine keeps bfloat16 ones beside its own.
        device: cpu or cuda.
    """
    codes = COPY_BYTES[precision]
    if precision == "bfloat16" or engine == "torchao":
        return codes, 2
    if engine == "te":
        return 2 + codes, 2
    if engine == "modelopt":
        return FLOAT32, FLOAT32
    around = BYTES[dtype_name_around(device)]
    return (around if engine == "emulated" else codes), around


def count_parameters(shapes: Shapes) -> int:
    """Numbers in all tensors that are parameters."""
    return sum(math.prod(shape) for name, shape in shapes.items() if name not in BUFFERS)


def lora_parameters(shapes: Shapes, targets: Sequence[str], rank: int) -> int:
    """Parameters of adapters of this rank on the linear layers whose names end in a target, as peft matches them."""
    chosen = [shape for layer, shape in layers_of(shapes) if any(names_layer(target, layer) for target in targets)]
    return sum(rank * sum(shape) for shape in chosen if len(shape) == 2)


def quantised_bytes(
    shapes: Shapes, exclude: Sequence[str], quantised: float, rest: float, pointwise: bool = False
) -> int:
    """Bytes of a network whose linear layers are quantised, but for those of the patterns.

    Args:
        shapes: of its tensors.
        exclude: patterns of layers that stay; see `precision.layers.matches`.
        quantised: bytes of a quantised weight.
        rest: bytes of any other number.
        pointwise: quantise 1 x 1 convolutions too.
    """
    from diffrl.precision.layers import matches

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
