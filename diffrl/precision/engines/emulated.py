"""Emulations: the same operands as in hardware, multiplied in a dtype that holds them exactly, summed in float32.

A format's numbers are values of few bits (codes, times the scales of their blocks) times outer scales in float32. The
values are exact in bfloat16: 6 significant bits of NVFP4, 4 of fp8 and MXFP8, 7 of int8, where bfloat16 has 8. So CUDA
multiplies them on its bfloat16 units; a CPU, whose bfloat16 product rounds its result, multiplies them in float32. The
outer scales are applied to the sums, as block-scaled hardware does. Of MXFP8 the exponent is part of the values: those
of a block whose amax is below 448 * 2^-124 (2e-35) may be rounded.

Activations are scaled per token, so that a sample does not depend on its batch-mates: with one NVFP4 scale for all, one
outlier moved them by 8 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.precision.engines.base import Defaults, FrozenLinear, dtype_around, wrong_dtype
from diffrl.precision.facts import EMULATED

Split = Callable[[Tensor], tuple[Tensor, Tensor]]
"""(..., K) to values (..., K) that bfloat16 holds exactly, and the outer scales () or (..., 1) float32."""


class EmulatedLinear(FrozenLinear):
    """A linear layer whose operands are rounded: the weight when it arrives, the input at each call.

    Args:
        linear: the layer that it stands for.
        split_weight: of (N, K) float32.
        split_input: of (M, K) float32, row by row.
        dtype: of both operands, and of the output.
    """

    weight: nn.Parameter
    outer: nn.Parameter

    def __init__(self, linear: nn.Linear, split_weight: Split, split_input: Split, dtype: torch.dtype):
        super().__init__(linear, torch.float32)
        self.split_weight, self.split_input, self.dtype = split_weight, split_input, dtype
        values, outer = split_weight(linear.weight.detach().float())
        self.weight = nn.Parameter(values.to(dtype).contiguous(), requires_grad=False)
        self.outer = nn.Parameter(outer.mT.contiguous() if outer.dim() else outer, requires_grad=False)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round weight (N, K) and take over bias (N,), in place."""
        values, outer = self.split_weight(weight.to(self.weight.device, torch.float32))
        self.weight.copy_(values)
        self.outer.copy_(outer.mT if outer.dim() else outer)
        self.copy_bias(bias)

    def dequantised(self) -> Tensor:
        """Return the weight (N, K) float32."""
        return self.weight.float() * (self.outer.mT if self.outer.dim() else self.outer)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (..., K) to (..., N) in the layer's dtype."""
        values, outer = self.split_input(x.reshape(-1, self.in_features).float())
        y = product(values.to(self.dtype), self.weight).mul_(outer).mul_(self.outer)
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.to(self.dtype).view(*x.shape[:-1], self.out_features)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x (M, K) times weight (N, K) transposed: summed in float32, and never rounded to bfloat16."""
    if x.dtype == torch.float32:
        return F.linear(x, weight)
    return torch.mm(x, weight.T, out_dtype=torch.float32)


@dataclass(frozen=True)
class Emulated(Defaults):
    """A backend that runs anywhere and saves no time: on CUDA in bfloat16, elsewhere in float32.

    Args:
        split_weight: (N, K) float32.
        split_input: (..., K) float32, row by row.
        largest_error: as in `Backend`.
        scaling: as in `Backend`.
        outside_dtype: as in `Backend`; the operands have it too.
    """

    split_weight: Split
    split_input: Split
    largest_error: float
    scaling: str = Defaults.scaling
    outside_dtype: torch.dtype = torch.float32
    name: str = EMULATED

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of the rest of the network."""
        return self.outside_dtype

    def on(self, device: torch.device) -> Emulated:
        """Return it in the dtype that a network has around low-precision layers there."""
        return replace(self, outside_dtype=dtype_around(device))

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return the layer with rounded operands."""
        return EmulatedLinear(linear, self.split_weight, self.split_input, self.outside_dtype)

    def inspect(self, layer: nn.Module) -> str | None:
        """Describe rounding that is not this backend's, or return None."""
        layer = cast(EmulatedLinear, layer)
        if layer.split_input is not self.split_input or layer.split_weight is not self.split_weight:
            return "it rounds otherwise than planned"
        return wrong_dtype(layer.weight, self.compute_dtype)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Return the product of the rounded operands, their scales in them."""
        x, weight = (values.float() * outer for values, outer in (self.split_input(x), self.split_weight(weight)))
        return x @ weight.T


def without_outer_scale(fake_quantise: Callable[[Tensor], Tensor]) -> Split:
    """Return the split of a format whose values bfloat16 holds exactly, scales included."""

    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        return fake_quantise(x), x.new_ones(())

    return split
