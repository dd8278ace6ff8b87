"""FP8 (E4M3) with float32 scales amax / 448, one for each row or one for all."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["row", "tensor"]

E4M3_MAX = 448.0


def quantize_fp8(x: Tensor, scaling: Scaling = "row") -> tuple[Tensor, Tensor]:
    """Quantise to E4M3, to nearest, ties to even.

    Args:
        x: (..., K) float32.
        scaling: one scale for each row along the last axis, or one for all.

    Returns:
        Codes (..., K) float8_e4m3fn and scales (..., 1) or () float32. An amax of 0 takes scale 1.
    """
    amax = x.abs().amax(dim=-1, keepdim=True) if scaling == "row" else x.abs().amax()
    scale = amax / E4M3_MAX
    scale = torch.where(torch.isinf(1.0 / scale), 1.0, scale)
    return (x / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def fake_quantize_fp8(x: Tensor, scaling: Scaling = "row") -> Tensor:
    """`quantize_fp8` and back: (..., K) float32."""
    codes, scale = quantize_fp8(x, scaling)
    return codes.float().mul_(scale)
