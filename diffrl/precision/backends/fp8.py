"""fp8 (E4M3) by `torch._scaled_mm` on plain tensors: real on CPUs and on NVIDIA GPUs from compute capability 8.9.

The same row-wise arithmetic as torchao's `Float8DynamicActivationFloat8WeightConfig(PerRow())`, without a tensor
subclass; zero rows give zeros instead of torchao's NaN. On the CPU it is right and slow: it serves tests and rankings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from diffrl.functional.formats.fp8 import Scaling, fake_quantize_fp8, quantize_fp8
from diffrl.precision.backends.base import Defaults, FrozenLinear, dtype_around, odd_sizes, wrong_dtype
from diffrl.precision.backends.machine import fp8_scaling, machine_of
from diffrl.precision.layout import row_major

CUDA_MULTIPLE = 16


class Fp8Linear(FrozenLinear):
    """A linear layer whose product is `aten._scaled_mm` of two E4M3 operands."""

    weight: nn.Parameter
    scale: nn.Parameter

    def __init__(self, linear: nn.Linear, scaling: Scaling, dtype: torch.dtype):
        super().__init__(linear, dtype)
        self.scaling, self.dtype = scaling, dtype
        device, rows = linear.weight.device, (1, linear.out_features) if scaling == "row" else ()
        self.weight = nn.Parameter(torch.empty_like(linear.weight, dtype=torch.float8_e4m3fn), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(rows, device=device), requires_grad=False)
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantise weight (N, K) and take over bias (N,), in place."""
        codes, scale = quantize_fp8(weight.to(self.weight.device, torch.float32), self.scaling)
        self.weight.copy_(codes)
        self.scale.copy_(scale.T if self.scaling == "row" else scale)
        self.copy_bias(bias)

    def dequantised(self) -> Tensor:
        """The weight (N, K) float32."""
        return self.weight.float() * self.scale.T

    def forward(self, x: Tensor) -> Tensor:
        """X (..., K) to (..., N) in the layer's dtype."""
        codes, scale = quantize_fp8(x.reshape(-1, self.in_features), self.scaling)
        y = torch._scaled_mm(
            row_major(codes), self.weight.T, scale, self.scale, out_dtype=self.dtype, use_fast_accum=self.weight.is_cuda
        )
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.view(*x.shape[:-1], self.out_features)


@dataclass(frozen=True)
class Fp8(Defaults):
    """Row-wise where the hardware has it, else with one scale a tensor."""

    per: Scaling = "row"
    outside_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    name: str = "torch"
    compute_dtype: torch.dtype = torch.float8_e4m3fn
    largest_error: float = 0.1

    @property
    def scaling(self) -> str:  # type: ignore[override]
        """Per token and channel, or per tensor."""
        return Defaults.scaling if self.per == "row" else "one scale per tensor"

    @property
    def batch_dependent(self) -> bool:  # type: ignore[override]
        """With one scale for all activations."""
        return self.per == "tensor"

    def on(self, device: torch.device) -> Fp8:
        """On CUDA the rest is bfloat16: row-wise products give nothing else."""
        if device.type != "cuda":
            return self
        per = fp8_scaling(machine_of(device), lambda: rows_work(device))
        return replace(self, per=per, outside_dtype=dtype_around(device), device="cuda")

    def unfit(self, linear: nn.Linear) -> str | None:
        """On CUDA both sizes must be multiples of 16."""
        return odd_sizes(linear, CUDA_MULTIPLE) if self.device == "cuda" else None

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer in E4M3."""
        return Fp8Linear(linear, self.per, self.outside_dtype)

    def inspect(self, layer: nn.Module) -> str | None:
        """That the weight is not E4M3."""
        return wrong_dtype(cast(Fp8Linear, layer).weight, torch.float8_e4m3fn)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The same rounding, multiplied in float32."""
        return fake_quantize_fp8(x, self.per) @ fake_quantize_fp8(weight, self.per).T


def rows_work(device: torch.device) -> bool:
    """Whether this build multiplies E4M3 with a scale for each row on this device: by trying."""
    codes, scale = quantize_fp8(torch.ones(32, 32, device=device))
    try:
        y = torch._scaled_mm(codes, codes.T, scale, scale.T.contiguous(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return bool((y == 32.0).all())
