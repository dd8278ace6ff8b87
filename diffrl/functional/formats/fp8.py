"""FP8 (E4M3) with float32 scales amax / 448, one for each row or one for all."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["row", "tensor"]

E4M3_MAX = 448.0


def quantize_fp8(x: Tensor, scaling: Scaling = "row") -> tuple[Tensor, Tensor]:
    """Quantise to E4M3, to nearest, ties to even.

    It passes over `x` three times: the largest, the smallest, then quotient and cast in one. No float32 tensor of its
    size is made on a GPU.

    Args:
        x: (..., K) float32 or bfloat16; the arithmetic is float32.
        scaling: one scale for each row along the last axis, or one for all.

    Returns:
        Codes (..., K) float8_e4m3fn, contiguous, and scales (..., 1) or () float32. An amax of 0 takes scale 1.
    """
    scale = amax_scale(x, E4M3_MAX, (-1,) if scaling == "row" else tuple(range(x.dim())))
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    torch.div(x, scale, out=codes)  # at most 448 (1 + 2^-22), which rounds to 448: nothing to clamp
    return codes, scale if scaling == "row" else scale.reshape(())


def amax_scale(x: Tensor, largest: float, dims: tuple[int, ...]) -> Tensor:
    """Return the scale by which the largest magnitude becomes the largest code.

    Args:
        x: floating point.
        largest: code.
        dims: over which it is taken; they keep a size of 1, without which torch would divide bfloat16 in bfloat16.

    Returns:
        amax / largest in float32; 1 where that is so small that its inverse overflows.
    """
    amax = torch.maximum(x.amax(dims, keepdim=True), -x.amin(dims, keepdim=True))  # abs() is another tensor as large
    scale = amax.float() / largest
    return torch.where(torch.isinf(1.0 / scale), 1.0, scale)


def fake_quantize_fp8(x: Tensor, scaling: Scaling = "row") -> Tensor:
    """Return `quantize_fp8` and back: (..., K) float32."""
    codes, scale = quantize_fp8(x, scaling)
    return codes.float().mul_(scale)
