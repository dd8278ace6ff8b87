"""bfloat16: the whole network is cast, also the few modules that a stock pipeline of Wan keeps in float32."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from diffrl.precision.backends.base import Defaults, wrong_dtype


class CastLinear(nn.Linear):
    """A linear layer whose weights are cast as they arrive."""

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take over weight (N, K) and bias (N,) in place."""
        self.weight.copy_(weight)
        if bias is not None:
            self.bias.copy_(bias)

    def dequantised(self) -> Tensor:
        """The weight (N, K) float32."""
        return self.weight.float()


class BFloat16(Defaults):
    """Real on any device that multiplies bfloat16; slower than float32 on CPUs without instructions for it."""

    name = "torch"
    whole = True
    compute_dtype = torch.bfloat16
    outside_dtype = torch.bfloat16
    largest_error = 0.02
    scaling = "no scales"

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer in bfloat16."""
        layer = CastLinear(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            device=linear.weight.device,
            dtype=torch.bfloat16,
        )
        layer.refresh(linear.weight, linear.bias)
        return layer.requires_grad_(False)

    def inspect(self, layer: nn.Module) -> str | None:
        """That the weight is not bfloat16."""
        return wrong_dtype(cast(CastLinear, layer).weight, torch.bfloat16)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """None: the output is rounded after the bias is added, which is as large an error as the operands'."""
        return None
