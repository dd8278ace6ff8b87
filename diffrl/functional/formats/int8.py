"""int8 with one scale per row: symmetric, to nearest, ties to even."""

from __future__ import annotations

import torch
from torch import Tensor

INT8_MAX = 127.0


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise along the last axis.

    Args:
        x: (..., K) float32.

    Returns:
        Codes (..., K) int8 in [-127, 127], and scales (..., 1) float32 such that x is about codes * scales. A row of
        zeros has scale 1.
    """
    scale = x.abs().amax(dim=-1, keepdim=True) / INT8_MAX
    scale = torch.where(torch.isinf(1.0 / scale), 1.0, scale)
    return (x / scale).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def fake_quantize_int8(x: Tensor) -> Tensor:
    """`quantize_int8` and back: (..., K) float32."""
    codes, scale = quantize_int8(x)
    return codes.float().mul_(scale)
