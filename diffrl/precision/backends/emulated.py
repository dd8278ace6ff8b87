"""Emulations: weights and activations rounded to a low precision and multiplied in float32. Right numbers, no speed.

Activations are scaled per token, so that a sample does not depend on its batch-mates (PRECISION.md, NVFP4 trap 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.functional.nvfp4 import E4M3_MAX, fake_quantize_nvfp4
from diffrl.precision.backends.int8 import fake_quantize_int8

FakeQuantize = Callable[[Tensor], Tensor]


class EmulatedLinear(nn.Module):
    """A linear layer whose operands are rounded: the weight when it arrives, the input at each call."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, round_weight: FakeQuantize, round_input: FakeQuantize):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.round_weight, self.round_input = round_weight, round_input
        self.weight = nn.Parameter(linear.weight.detach().float().clone(), requires_grad=False)
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().float().clone(), requires_grad=False)
        self.register_parameter("bias", bias)
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round weight (N, K) and take over bias (N,), in place."""
        self.weight.copy_(self.round_weight(weight.float()))
        if bias is not None and self.bias is not None:
            self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """X (..., K) float32 to (..., N) float32."""
        return F.linear(self.round_input(x), self.weight, self.bias)


@dataclass(frozen=True)
class Emulated:
    """A backend that runs anywhere and saves no time.

    Args:
        round_weight: (N, K) float32, rounded.
        round_input: (..., K) float32, rounded row by row.
        largest_error: as in `Backend`.
    """

    round_weight: FakeQuantize
    round_input: FakeQuantize
    largest_error: float
    name: str = "emulated"
    real: bool = False
    whole: bool = False
    compute_dtype: torch.dtype = torch.float32
    outside_dtype: torch.dtype = torch.float32

    def available(self, device: torch.device) -> str | None:
        """None: it runs anywhere."""
        return None

    def unfit(self, linear: nn.Linear) -> str | None:
        """None: any size will do."""
        return None

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer with rounded operands."""
        return EmulatedLinear(linear, self.round_weight, self.round_input)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The product of the rounded operands."""
        return self.round_input(x) @ self.round_weight(weight).T


def nvfp4() -> Emulated:
    """W4A4: weights with one outer scale, activations with one a token."""
    return Emulated(fake_quantize_nvfp4, partial(fake_quantize_nvfp4, per_row=True), largest_error=0.3)


def fp8() -> Emulated:
    """W8A8 in E4M3: one scale per output channel, one per token."""
    return Emulated(fake_quantize_fp8, fake_quantize_fp8, largest_error=0.1)


def int8() -> Emulated:
    """W8A8 in int8: one scale per output channel, one per token; checks the real one."""
    return Emulated(fake_quantize_int8, fake_quantize_int8, largest_error=0.05)


def fake_quantize_fp8(x: Tensor) -> Tensor:
    """E4M3 with one float32 scale amax / 448 along the last axis, and back: (..., K) float32."""
    scale = x.abs().amax(dim=-1, keepdim=True) / E4M3_MAX
    scale = torch.where(torch.isinf(1.0 / scale), 1.0, scale)
    return (x / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float().mul_(scale)
