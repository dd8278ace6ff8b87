"""PyTorch's own products: bfloat16 by a cast, int8 by `aten._int_mm`, fp8 by `aten._scaled_mm` on plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.functional.formats.fp8 import Scaling, fake_quantize_fp8, quantize_fp8
from diffrl.functional.formats.int8 import quantize_int8
from diffrl.precision.choice import Machine, machine_of
from diffrl.precision.engines.base import Defaults, FrozenLinear, dtype_around, odd_sizes, row_major, wrong_dtype

INT_MM_ROWS = 17
"""The least that `aten._int_mm` takes on CUDA."""


class CastLinear(nn.Linear):
    """A linear layer whose weights are cast as they arrive."""

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take over weight (N, K) and bias (N,) in place."""
        self.weight.copy_(weight)
        if bias is not None:
            self.bias.copy_(bias)

    def dequantised(self) -> Tensor:
        """Return the weight (N, K) float32."""
        return self.weight.float()


class Cast(Defaults):
    """bfloat16 throughout, also the few modules that a stock pipeline of Wan keeps in float32."""

    name = "torch"
    whole = True
    compute_dtype = torch.bfloat16
    outside_dtype = torch.bfloat16
    largest_error = 0.02
    scaling = "no scales"

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return the layer in bfloat16."""
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
        """Say that the weight is not bfloat16."""
        return wrong_dtype(cast(CastLinear, layer).weight, torch.bfloat16)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Return None: the output is rounded after the bias is added, as large an error as the operands'."""
        return None


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
        """Return the weight (N, K) float32."""
        return self.weight.float() * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x (..., K) to (..., N) in the layer's dtype."""
        codes, scale = quantize_int8(x.reshape(-1, self.in_features))
        rows = codes.shape[0]
        if codes.is_cuda and rows < INT_MM_ROWS:
            codes = F.pad(codes, (0, 0, 0, INT_MM_ROWS - rows))
        y = torch._int_mm(codes, self.weight.T)[:rows].float().mul_(scale).mul_(self.scale)
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.to(self.dtype).view(*x.shape[:-1], self.out_features)


class Fp8Linear(FrozenLinear):
    """A linear layer whose product is `aten._scaled_mm` of two E4M3 operands."""

    weight: nn.Parameter
    scale: nn.Parameter

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32, scaling: Scaling = "row"):
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
        """Return the weight (N, K) float32."""
        return self.weight.float() * self.scale.T

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x (..., K) to (..., N) in the layer's dtype."""
        codes, scale = quantize_fp8(x.reshape(-1, self.in_features), self.scaling)
        y = torch._scaled_mm(
            row_major(codes), self.weight.T, scale, self.scale, out_dtype=self.dtype, use_fast_accum=self.weight.is_cuda
        )
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.view(*x.shape[:-1], self.out_features)


@dataclass(frozen=True)
class Native(Defaults):
    """A precision that torch multiplies on CPUs and CUDA GPUs; on CUDA the rest of the network is bfloat16.

    Args:
        compute_dtype: as in `Backend`.
        largest_error: as in `Backend`.
        multiple: on CUDA, K and N must be multiples of it.
        layer: of a linear layer and the dtype of its output.
        round: what float32 numbers become; the emulation.
        outside_dtype: as in `Backend`.
        on_cuda: whether it runs there.
        scaling: as in `Backend`.
        batch_dependent: as in `Backend`.
    """

    compute_dtype: torch.dtype
    largest_error: float
    multiple: int
    layer: Callable[[nn.Linear, torch.dtype], nn.Module]
    round: Callable[[Tensor], Tensor]
    outside_dtype: torch.dtype = torch.float32
    on_cuda: bool = False
    scaling: str = Defaults.scaling
    batch_dependent: bool = False
    name: str = "torch"

    def on(self, device: torch.device) -> Self:
        """Return it with bfloat16 around it on CUDA."""
        return replace(self, outside_dtype=dtype_around(device), on_cuda=device.type == "cuda")

    def unfit(self, linear: nn.Linear) -> str | None:
        """Say that a size is no such multiple on CUDA."""
        return odd_sizes(linear, self.multiple) if self.on_cuda else None

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return the layer in low precision."""
        return self.layer(linear, self.outside_dtype)

    def inspect(self, layer: nn.Module) -> str | None:
        """Say that the weight has another dtype."""
        return wrong_dtype(cast(Any, layer).weight, self.compute_dtype)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Multiply the rounded operands in float32."""
        return self.round(x) @ self.round(weight).T


class Fp8(Native):
    """E4M3, row-wise where the hardware has it, else with one scale a tensor."""

    def on(self, device: torch.device) -> Self:
        """Return it as this device multiplies it."""
        made = super().on(device)
        if fp8_scaling(machine_of(device), lambda: rows_work(device)) == "row":
            return made
        return replace(
            made,
            layer=partial(Fp8Linear, scaling="tensor"),
            round=partial(fake_quantize_fp8, scaling="tensor"),
            scaling="one scale per tensor",
            batch_dependent=True,
        )


def fp8_scaling(machine: Machine, rows_work: Callable[[], bool]) -> Scaling:
    """Return whether a scale is shared by a row or by the tensor: rows where possible, as they keep samples apart.

    Args:
        machine: where it shall run.
        rows_work: tries a row-wise product; asked on compute capability 8.9 only, where it depends on the build.

    Returns:
        "row" on CPUs, 9.0 and 10.x; on 8.9 by trial; "tensor" from 11.0 on, where row-wise products failed (pytorch
        issue 192707).
    """
    if machine.device != "cuda" or machine.capability is None:
        return "row"
    if machine.capability < (9, 0):
        return "row" if rows_work() else "tensor"
    return "row" if machine.capability < (11, 0) else "tensor"


def rows_work(device: torch.device) -> bool:
    """Try whether this build multiplies E4M3 with a scale for each row on this device."""
    codes, scale = quantize_fp8(torch.ones(32, 32, device=device))
    try:
        y = torch._scaled_mm(codes, codes.T, scale, scale.T.contiguous(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return bool((y == 32.0).all())
