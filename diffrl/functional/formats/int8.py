"""int8 with one scale per row: symmetric, to nearest, ties to even."""

from __future__ import annotations

import torch
from torch import Tensor

from diffrl.functional.formats.fp8 import amax_scale

INT8_MAX = 127.0


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise along the last axis.

    Args:
        x: (..., K) float32 or bfloat16; the arithmetic is float32.

    Returns:
        Codes (..., K) int8 in [-127, 127], and scales (..., 1) float32 such that x is about codes * scales. A row of
        zeros has scale 1.
    """
    scale = amax_scale(x, INT8_MAX, (-1,))
    return (x / scale).round_().to(torch.int8), scale  # at most 127 (1 + 2^-22): nothing to clamp


def fake_quantize_int8(x: Tensor) -> Tensor:
    """Return `quantize_int8` and back: (..., K) float32."""
    codes, scale = quantize_int8(x)
    return codes.float().mul_(scale)
