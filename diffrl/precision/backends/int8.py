"""int8 with one scale per token and per output channel: symmetric, activations dynamic, products exact in int32.

Preferred to torchao's by `auto`: torchao 0.18 leaves the int8 product for an int32 or float32 one on sizes that are no
multiple of 8 and on any exception, without a word (torchao/kernel/intmm.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.functional.formats.int8 import fake_quantize_int8, quantize_int8
from diffrl.precision.backends.base import Defaults, FrozenLinear, dtype_around, odd_sizes, wrong_dtype

CUDA_MULTIPLE = 8
CUDA_MIN_ROWS = 17


class Int8Linear(FrozenLinear):
    """A linear layer whose product is `aten._int_mm`."""

    weight: nn.Parameter
    scale: nn.Parameter

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32):
        super().__init__(linear, torch.float32)
        self.dtype = dtype
        device = linear.weight.device
        self.weight = nn.Parameter(torch.empty_like(linear.weight, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(linear.out_features, device=device), requires_grad=False)
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantise weight (N, K) and take over bias (N,), in place."""
        codes, scale = quantize_int8(weight.to(self.weight.device, torch.float32))
        self.weight.copy_(codes)
        self.scale.copy_(scale.squeeze(-1))
        self.copy_bias(bias)

    def dequantised(self) -> Tensor:
        """The weight (N, K) float32."""
        return self.weight.float() * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """X (..., K) to (..., N) in the layer's dtype."""
        codes, scale = quantize_int8(x.reshape(-1, self.in_features))
        rows = codes.shape[0]
        if codes.is_cuda and rows < CUDA_MIN_ROWS:
            codes = F.pad(codes, (0, 0, 0, CUDA_MIN_ROWS - rows))
        y = torch._int_mm(codes, self.weight.T)[:rows].float().mul_(scale).mul_(self.scale)
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.to(self.dtype).view(*x.shape[:-1], self.out_features)


@dataclass(frozen=True)
class Int8(Defaults):
    """Real on CPUs and CUDA GPUs; on CUDA the rest of the network is bfloat16."""

    outside_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    name: str = "torch"
    compute_dtype: torch.dtype = torch.int8
    largest_error: float = 0.3  # with channels of outliers; how near it must be to the emulation is what tells

    def on(self, device: torch.device) -> Int8:
        """On CUDA with bfloat16 around it."""
        return replace(self, outside_dtype=dtype_around(device), device=device.type)

    def unfit(self, linear: nn.Linear) -> str | None:
        """On CUDA both sizes must be multiples of 8."""
        return odd_sizes(linear, CUDA_MULTIPLE) if self.device == "cuda" else None

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer in int8."""
        return Int8Linear(linear, self.outside_dtype)

    def inspect(self, layer: nn.Module) -> str | None:
        """That the weight is not int8."""
        return wrong_dtype(cast(Int8Linear, layer).weight, torch.int8)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The same rounding, multiplied in float32."""
        return fake_quantize_int8(x) @ fake_quantize_int8(weight).T
