"""NVFP4, the four-bit float of NVIDIA's Blackwell: reference quantisation, and its round trip in one go.

A number is an E2M1 code (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) times the E4M3 scale of its block of 16 along
the last axis, times one float32 scale. Everything is float32 and in this order, which agrees bit for bit with
torchao's `NVFP4Tensor` (torchao 0.18, `nvfp4_quantize`):

    s2   = amax / (448 * 6)                                        per tensor, or per row
    s1   = e4m3(clamp((block_amax / 6) / s2, 2^-6, 448))           per block
    code = e2m1(clamp(x * ((1 / s2) / s1), -6, 6))                 to nearest, ties to even
    x'   = code * (s2 * s1)

Two departures, both where torchao has no answer: an amax of 0, or one so small that 1 / s2 overflows (below about
8e-36), takes s2 = 1 and gives zeros instead of NaN; a ragged last block is padded with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from diffrl.functional.formats.fp8 import E4M3_MAX

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MIN_NORMAL = 2.0**-6
_EXPONENT_BITS = 0x7F800000


def fake_quantize_nvfp4(x: Tensor, per_row: bool = False) -> Tensor:
    """Return what `x` becomes when it is quantised and dequantised, without building the codes.

    Args:
        x: (..., K) floating point.
        per_row: one outer scale for each row (..., :) instead of one for the whole tensor, so that a row's result does
            not depend on the others.

    Returns:
        (..., K) in x's dtype.

    Raises:
        ValueError: `x` is a scalar or empty.
    """
    grid, s1, s2 = _signed_grid(x, per_row)
    return _rows(grid.mul_((s2 * s1).unsqueeze(-1)), x.shape[-1]).to(x.dtype)


def split_nvfp4(x: Tensor, per_row: bool = False) -> tuple[Tensor, Tensor]:
    """Return what a block-scaled product multiplies, and the outer scale that its result is multiplied by.

    A code has at most 2 significant bits and a block's scale 4: their product has at most 6, from 2^-7 to 2688, which
    bfloat16 holds exactly.

    Args:
        x: (..., K) floating point.
        per_row: as in `fake_quantize_nvfp4`.

    Returns:
        Codes times block scales (..., K) float32, and the outer scale float32, () or (..., 1). Their product is
        `fake_quantize_nvfp4(x, per_row)` but for the rounding of one multiplication.

    Raises:
        ValueError: `x` is a scalar or empty.
    """
    grid, s1, s2 = _signed_grid(x, per_row)
    return _rows(grid.mul_(s1.unsqueeze(-1)), x.shape[-1]), s2


def _signed_grid(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes' values (..., K / 16, 16), block scales (..., K / 16) and outer scale () or (..., 1)."""
    blocks = _blocks(x)
    magnitude = blocks.abs()
    s1, s2 = _scales(magnitude, per_row)
    return _round_to_e2m1(magnitude.mul_(((1.0 / s2) / s1).unsqueeze(-1))).copysign_(blocks), s1, s2


def _blocks(x: Tensor) -> Tensor:
    """Return (..., K) -> (..., ceil(K / 16), 16) float32, the end padded with zeros."""
    if x.dim() == 0 or x.numel() == 0:
        raise ValueError(f"NVFP4 needs at least one element along a last axis. Got shape {tuple(x.shape)}.")
    padded = F.pad(x.float(), (0, -x.shape[-1] % BLOCK))
    return padded.reshape(*x.shape[:-1], -1, BLOCK)


def _rows(blocks: Tensor, length: int) -> Tensor:
    """Return (..., ceil(K / 16), 16) -> (..., K): undo `_blocks`."""
    return blocks.flatten(-2)[..., :length]


def _scales(magnitude: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
    """Return block scales (..., K / 16), float32 with E4M3 values, and the outer scale () or (..., 1)."""
    block_amax = magnitude.amax(dim=-1)
    amax = block_amax.amax(dim=-1, keepdim=True) if per_row else block_amax.amax()
    s2 = amax / (E4M3_MAX * E2M1_MAX)
    s2 = torch.where(torch.isinf(1.0 / s2), 1.0, s2)
    s1 = ((block_amax / E2M1_MAX) / s2).clamp(E4M3_MIN_NORMAL, E4M3_MAX)
    return s1.to(torch.float8_e4m3fn).float(), s2


def _round_to_e2m1(magnitude: Tensor) -> Tensor:
    """Round magnitudes to 0, .5, 1, 1.5, 2, 3, 4 or 6, ties to even. May write to its argument.

    The values are multiples of 0.5 below 2, of 1 below 4 and of 2 above: half the power of two below the magnitude.
    """
    magnitude = magnitude.clamp_(max=E2M1_MAX)
    power = magnitude.clamp(min=1.0).view(torch.int32).bitwise_and_(_EXPONENT_BITS).view(torch.float32)
    step = power.mul_(0.5)
    return magnitude.div_(step).round_().mul_(step)
