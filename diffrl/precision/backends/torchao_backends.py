"""torchao's precisions as backends: what each needs of a layer, how it rounds, what its weight must look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8
from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.backends.base import Defaults, odd_sizes
from diffrl.precision.backends.fp8 import rows_work
from diffrl.precision.backends.machine import fp8_scaling, machine_of, use_triton_for_nvfp4
from diffrl.precision.backends.torchao_layers import (
    TorchaoLinear,
    fp8_weight,
    int8_weight,
    mxfp8_weight,
    nvfp4_weight,
    rounded,
)

Round = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Torchao(Defaults):
    """One of torchao's dynamic configurations.

    Args:
        precision: its name here.
        quantise: a bfloat16 weight (N, K) as a torchao tensor.
        round: what float32 numbers become; the emulation. Ours where torchao's equals it, else torchao's own.
        weight_class: name of the tensor's class.
        code_dtype: of its codes as stored.
        compute_dtype: as in `Backend`.
        largest_error: as in `Backend`.
        multiples: K and N must be multiples of these.
        scale_dtype: as in `Backend`.
        scaling: as in `Backend`.
        batch_dependent: as in `Backend`.
        outside_dtype: as in `Backend`.
    """

    precision: str
    quantise: Callable[[Tensor], Tensor]
    round: Round
    weight_class: str
    code_dtype: torch.dtype
    compute_dtype: torch.dtype
    largest_error: float
    multiples: tuple[int, int]
    scale_dtype: torch.dtype | None = None
    scaling: str = Defaults.scaling
    batch_dependent: bool = False
    name: str = "torchao"
    outside_dtype: torch.dtype = field(default=torch.bfloat16)

    def on(self, device: torch.device) -> Torchao:
        """FP8 with one scale a tensor where rows cannot be; NVFP4 with the fused kernel where it can be."""
        if device.type != "cuda":
            return self
        machine = machine_of(device)
        if self.precision == "nvfp4" and use_triton_for_nvfp4(machine):
            return replace(self, quantise=partial(nvfp4_weight, triton=True))
        if self.precision == "fp8" and fp8_scaling(machine, lambda: rows_work(device)) == "tensor":
            return fp8_per_tensor()
        return self

    def unfit(self, linear: nn.Linear) -> str | None:
        """Sizes that torchao would leave in bfloat16, detour or refuse."""
        return odd_sizes(linear, *self.multiples)

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer with torchao's weight."""
        return TorchaoLinear(linear, self.quantise, self.outside_dtype)

    def inspect(self, layer: nn.Module) -> str | None:
        """Another class or dtype of weight, or one whose activations stay as they are."""
        weight: Any = cast(TorchaoLinear, layer).weight
        held = getattr(weight, "data", weight)
        if type(held).__name__ != self.weight_class:
            return f"its weight is a {type(held).__name__}, not a {self.weight_class}"
        if held.qdata.dtype != self.code_dtype:
            return f"its codes are {held.qdata.dtype}, not {self.code_dtype}"
        return "its activations are not quantised" if held.act_quant_kwargs is None else None

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The same rounding, multiplied in float32; the weight passes bfloat16 on its way, as it does in the layer."""
        return self.round(x) @ self.round(weight.to(self.outside_dtype).float()).T


def int8() -> Torchao:
    """W8A8, per token and channel; `auto` prefers the engine torch."""
    return Torchao(
        "int8",
        int8_weight,
        partial(rounded, quantise=int8_weight),
        "Int8Tensor",
        torch.int8,
        torch.int8,
        0.3,
        multiples=(8, 8),
    )


def fp8() -> Torchao:
    """W8A8 in E4M3, per token and channel."""
    e4m3, quantise = torch.float8_e4m3fn, partial(fp8_weight, per="row")
    own = partial(rounded, quantise=quantise)
    return Torchao("fp8", quantise, own, "Float8Tensor", e4m3, e4m3, 0.1, multiples=(16, 16))


def fp8_per_tensor() -> Torchao:
    """W8A8 in E4M3 with one scale for all activations: a sample then depends on its batch."""
    quantise = partial(fp8_weight, per="tensor")
    return replace(
        fp8(),
        quantise=quantise,
        round=partial(rounded, quantise=quantise),
        scaling="one scale per tensor",
        batch_dependent=True,
    )


def mxfp8() -> Torchao:
    """W8A8 in E4M3 with a power of two per block of 32."""
    e4m3 = torch.float8_e4m3fn
    return Torchao(
        "mxfp8",
        mxfp8_weight,
        fake_quantize_mxfp8,
        "MXTensor",
        e4m3,
        e4m3,
        0.1,
        multiples=(32, 16),
        scale_dtype=torch.float8_e8m0fnu,
        scaling="a power of two per block of 32",
    )


def nvfp4() -> Torchao:
    """W4A4; the outer scale of the activations is one for the batch, so a sample depends on its batch."""
    return Torchao(
        "nvfp4",
        partial(nvfp4_weight, triton=False),
        fake_quantize_nvfp4,
        "NVFP4Tensor",
        torch.uint8,
        torch.float4_e2m1fn_x2,
        0.3,
        multiples=(16, 16),
        scale_dtype=torch.float8_e4m3fn,
        scaling="a scale per block of 16 and one per tensor",
        batch_dependent=True,
    )
