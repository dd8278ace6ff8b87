"""MXFP8, the block-scaled eight-bit float of the OCP Microscaling specification: reference rounding.

A number is an E4M3 code times the power of two (E8M0) of its block of 32 along the last axis. The power is the smallest
that makes the block's largest magnitude fit, amax / 448 rounded up, as cuBLAS derives it and torchao's `RCEIL` does:

    e    = clamp(ceil(log2(block_amax / 448)), -127, 127)
    code = e4m3(clamp(x * 2^-e, -448, 448))                        to nearest, ties to even
    x'   = code * 2^e

The exponent is taken from the float's bits, not from a rounded logarithm. A ragged last block is padded with zeros.
Blocks whose amax / 448 is 2^-127 or less are below every float32 worth keeping and become zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from diffrl.functional.formats.fp8 import E4M3_MAX

BLOCK = 32
E8M0_MIN, E8M0_MAX = -127, 127


def quantize_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise along the last axis.

    Args:
        x: (..., K) floating point, finite.

    Returns:
        Codes (..., ceil(K / 32), 32) float8_e4m3fn, the end padded, and exponents (..., ceil(K / 32)) int32.

    Raises:
        ValueError: `x` is a scalar or empty.
    """
    if x.dim() == 0 or x.numel() == 0:
        raise ValueError(f"MXFP8 needs at least one element along a last axis. Got shape {tuple(x.shape)}.")
    blocks = F.pad(x.float(), (0, -x.shape[-1] % BLOCK)).reshape(*x.shape[:-1], -1, BLOCK)
    mantissa, exponent = torch.frexp(blocks.abs().amax(dim=-1) / E4M3_MAX)  # mantissa in [0.5, 1), or 0
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    exponent = torch.where(mantissa == 0.0, E8M0_MIN, exponent).clamp(E8M0_MIN, E8M0_MAX)
    scaled = torch.where(exponent[..., None] > E8M0_MIN, torch.ldexp(blocks, -exponent[..., None]), 0.0)
    return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), exponent


def fake_quantize_mxfp8(x: Tensor) -> Tensor:
    """Return `quantize_mxfp8` and back: (..., K) in x's dtype."""
    codes, exponent = quantize_mxfp8(x)
    return torch.ldexp(codes.float(), exponent[..., None]).flatten(-2)[..., : x.shape[-1]].to(x.dtype)
