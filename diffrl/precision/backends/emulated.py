"""Emulations: weights and activations rounded to a low precision and multiplied in float32. Right numbers, no speed.

Activations are scaled per token, so that a sample does not depend on its batch-mates: with one NVFP4 scale for all, one
outlier moved them by 8 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.functional.formats.fp8 import fake_quantize_fp8
from diffrl.functional.formats.int8 import fake_quantize_int8
from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8
from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.backends.base import Defaults, FrozenLinear, wrong_dtype

FakeQuantize = Callable[[Tensor], Tensor]


class EmulatedLinear(FrozenLinear):
    """A linear layer whose operands are rounded: the weight when it arrives, the input at each call."""

    weight: nn.Parameter

    def __init__(self, linear: nn.Linear, round_weight: FakeQuantize, round_input: FakeQuantize):
        super().__init__(linear, torch.float32)
        self.round_weight, self.round_input = round_weight, round_input
        self.weight = nn.Parameter(torch.empty_like(linear.weight, dtype=torch.float32), requires_grad=False)
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round weight (N, K) and take over bias (N,), in place."""
        self.weight.copy_(self.round_weight(weight.to(self.weight.device, torch.float32)))
        self.copy_bias(bias)

    def dequantised(self) -> Tensor:
        """The weight (N, K) float32."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        """X (..., K) float32 to (..., N) float32."""
        return F.linear(self.round_input(x), self.weight, self.bias)


@dataclass(frozen=True)
class Emulated(Defaults):
    """A backend that runs anywhere and saves no time.

    Args:
        round_weight: (N, K) float32, rounded.
        round_input: (..., K) float32, rounded row by row.
        largest_error: as in `Backend`.
        scaling: as in `Backend`.
    """

    round_weight: FakeQuantize
    round_input: FakeQuantize
    largest_error: float
    scaling: str = Defaults.scaling
    name: str = "emulated"
    real: bool = False
    compute_dtype: torch.dtype = torch.float32
    outside_dtype: torch.dtype = torch.float32

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer with rounded operands."""
        return EmulatedLinear(linear, self.round_weight, self.round_input)

    def inspect(self, layer: nn.Module) -> str | None:
        """That the rounding is not this backend's."""
        layer = cast(EmulatedLinear, layer)
        if layer.round_input is not self.round_input or layer.round_weight is not self.round_weight:
            return "it rounds otherwise than planned"
        return wrong_dtype(layer.weight, torch.float32)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The product of the rounded operands."""
        return self.round_input(x) @ self.round_weight(weight).T


def nvfp4() -> Emulated:
    """W4A4: weights with one outer scale, activations with one a token."""
    inputs = partial(fake_quantize_nvfp4, per_row=True)
    scaling = "a scale per block of 16, outer ones per token and for the weight"
    return Emulated(fake_quantize_nvfp4, inputs, 0.3, scaling)


def mxfp8() -> Emulated:
    """W8A8 in E4M3 with a power of two for each block of 32 along K."""
    return Emulated(fake_quantize_mxfp8, fake_quantize_mxfp8, 0.1, "a power of two per block of 32")


def fp8() -> Emulated:
    """W8A8 in E4M3: one scale per output channel, one per token."""
    return Emulated(fake_quantize_fp8, fake_quantize_fp8, largest_error=0.1)


def int8() -> Emulated:
    """W8A8 in int8: one scale per output channel, one per token; checks the real one."""
    return Emulated(fake_quantize_int8, fake_quantize_int8, largest_error=0.3)
