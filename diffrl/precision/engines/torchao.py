"""torchao's dynamic configurations: a linear layer whose weight is a torchao tensor, made and refreshed in place.

The weights are built by the tensor classes themselves with what torchao's configuration objects say, not by
`quantize_`: that one leaves a layer in bfloat16 without a word where the sizes do not fit, asks for the GPU even to
convert, and gives NaN for a weight of zeros. torchao 0.18; imported only where one of its layers is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.functional.formats.fp8 import Scaling
from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.choice import Machine, machine_of
from diffrl.precision.engines.base import Defaults, FrozenLinear, odd_sizes, row_major
from diffrl.precision.engines.native import fp8_scaling, rows_work

LEAST_AMAX = 1e-12
"""Scales never derive from less, so that rows of zeros give zeros."""


@dataclass(frozen=True, kw_only=True)
class Torchao(Defaults):
    """One of torchao's dynamic configurations.

    Args:
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

    quantise: Callable[[Tensor], Tensor]
    round: Callable[[Tensor], Tensor]
    weight_class: str
    code_dtype: torch.dtype
    compute_dtype: torch.dtype
    largest_error: float
    multiples: tuple[int, int]
    scale_dtype: torch.dtype | None = None
    scaling: str = Defaults.scaling
    batch_dependent: bool = False
    name: str = "torchao"
    outside_dtype: torch.dtype = torch.bfloat16

    def unfit(self, linear: nn.Linear) -> str | None:
        """Say that torchao would leave these sizes in bfloat16, detour or refuse."""
        return odd_sizes(linear, *self.multiples)

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return the layer with torchao's weight."""
        return TorchaoLinear(linear, self.quantise, self.outside_dtype)

    def inspect(self, layer: nn.Module) -> str | None:
        """Say that the weight is of another class or dtype, or that activations stay as they are."""
        weight: Any = cast(TorchaoLinear, layer).weight
        held = getattr(weight, "data", weight)
        if type(held).__name__ != self.weight_class:
            return f"its weight is a {type(held).__name__}, not a {self.weight_class}"
        if held.qdata.dtype != self.code_dtype:
            return f"its codes are {held.qdata.dtype}, not {self.code_dtype}"
        return "its activations are not quantised" if held.act_quant_kwargs is None else None

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Multiply in float32 what was rounded; the weight passes bfloat16 on its way, as it does in the layer."""
        return self.round(x) @ self.round(weight.to(self.outside_dtype).float()).T


class TorchaoFp8(Torchao):
    """E4M3, with one scale a tensor where rows cannot be multiplied: a sample then depends on its batch."""

    @classmethod
    def scaled_by(cls, per: Scaling, largest_error: float) -> Self:
        """Make the backend with these scales."""
        quantise = partial(fp8_weight, per=per)
        return cls(
            quantise=quantise,
            round=partial(rounded, quantise=quantise),
            weight_class="Float8Tensor",
            code_dtype=torch.float8_e4m3fn,
            compute_dtype=torch.float8_e4m3fn,
            largest_error=largest_error,
            multiples=(16, 16),
            scaling=Defaults.scaling if per == "row" else "one scale per tensor",
            batch_dependent=per == "tensor",
        )

    def on(self, device: torch.device) -> Self:
        """Return it as this device multiplies it."""
        return self.scaled_by(fp8_scaling(machine_of(device), lambda: rows_work(device)), self.largest_error)


class TorchaoNvfp4(Torchao):
    """E2M1; a sample depends on its batch."""

    def on(self, device: torch.device) -> Self:
        """Return it with the fused kernel for activations where it can be."""
        if not use_triton_for_nvfp4(machine_of(device)):
            return self
        return replace(self, quantise=partial(nvfp4_weight, triton=True))


def nvfp4(largest_error: float, scaling: str) -> Torchao:
    """Make the backend for NVFP4; the outer scale of the activations is one for the batch."""
    return TorchaoNvfp4(
        quantise=partial(nvfp4_weight, triton=False),
        round=fake_quantize_nvfp4,
        weight_class="NVFP4Tensor",
        code_dtype=torch.uint8,
        compute_dtype=torch.float4_e2m1fn_x2,
        largest_error=largest_error,
        multiples=(16, 16),
        scale_dtype=torch.float8_e4m3fn,
        scaling=scaling,
        batch_dependent=True,
    )


def use_triton_for_nvfp4(machine: Machine) -> bool:
    """Return whether torchao may quantise activations with its fused kernel: it needs mslk, and fails late without."""
    return "mslk" in machine.packages and machine.capability is not None and machine.capability[0] == 10


class TorchaoLinear(FrozenLinear):
    """A linear layer whose product is torchao's.

    Args:
        linear: the layer.
        quantise: a weight (N, K) in `dtype` as a torchao tensor.
        dtype: of input and output.
    """

    weight: nn.Parameter

    def __init__(self, linear: nn.Linear, quantise: Callable[[Tensor], Tensor], dtype: torch.dtype):
        super().__init__(linear, dtype)
        self.quantise, self.dtype = quantise, dtype
        self.weight = nn.Parameter(quantise(linear.weight.detach().to(dtype)), requires_grad=False)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantise weight (N, K) to a temporary and copy it over; take over bias (N,)."""
        self.weight.copy_(self.quantise(weight.detach().to(self.weight.device, self.dtype)))
        self.copy_bias(bias)

    def dequantised(self) -> Tensor:
        """Return the weight (N, K) float32."""
        weight: Any = self.weight
        dequantised: Tensor = weight.dequantize(torch.float32)
        return dequantised

    def forward(self, x: Tensor) -> Tensor:
        """Return x (..., K) to (..., N)."""
        return F.linear(row_major(x), self.weight, self.bias)


def rounded(x: Tensor, quantise: Callable[[Tensor], Tensor]) -> Tensor:
    """Return torchao's (..., K) in float32. In bfloat16 its int8 and fp8 scales are rounded, so its codes differ.

    Against exact scales a code in a few differs by a step: fp8 products by 1.5 %, nearly half of their rounding.
    """
    tensor: Any = quantise(x.bfloat16())
    result: Tensor = tensor.dequantize(torch.float32)
    return result


def int8_config() -> Any:
    """Return symmetric, one scale per token and per channel."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, PerRow

    return Int8DynamicActivationInt8WeightConfig(granularity=PerRow(), set_inductor_config=False)


def int8_weight(weight: Tensor) -> Tensor:
    """Quantise as `quantize_` with `int8_config` does."""
    from torchao.quantization import Int8Tensor
    from torchao.quantization.quantize_.workflows.int8.int8_tensor import QuantizeTensorToInt8Kwargs

    config = int8_config()
    inputs = QuantizeTensorToInt8Kwargs(config.granularity, config.act_mapping_type, config.reduce_range)
    made: Tensor = Int8Tensor.from_hp(
        weight, granularity=config.granularity, act_quant_kwargs=inputs, reduce_range=config.reduce_range
    )
    return made


def fp8_config(per: Scaling) -> Any:
    """Return E4M3 with scales per row or tensor, by `aten._scaled_mm`: torchao would choose mslk where installed."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, PerTensor
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    return Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow() if per == "row" else PerTensor(),
        kernel_preference=KernelPreference.TORCH,
        activation_value_lb=LEAST_AMAX,
        set_inductor_config=False,
    )


def fp8_weight(weight: Tensor, per: Scaling) -> Tensor:
    """Quantise as `quantize_` with `fp8_config` does, zero rows aside."""
    from torchao.quantization import Float8Tensor
    from torchao.quantization.quantize_.workflows.float8.float8_tensor import QuantizeTensorToFloat8Kwargs

    config = fp8_config(per)
    activation, weight_granularity = config.granularity
    inputs = QuantizeTensorToFloat8Kwargs(
        config.activation_dtype,
        activation,
        hp_value_lb=config.activation_value_lb,
        hp_value_ub=config.activation_value_ub,
        kernel_preference=config.kernel_preference,
    )
    made: Tensor = Float8Tensor.from_hp(
        weight,
        float8_dtype=config.weight_dtype,
        granularity=weight_granularity,
        mm_config=config.mm_config,
        hp_value_lb=LEAST_AMAX,
        kernel_preference=config.kernel_preference,
        act_quant_kwargs=inputs,
    )
    return made


def mxfp8_config() -> Any:
    """Return E4M3 with a power of two per block of 32, rounded up."""
    from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig

    return MXDynamicActivationMXWeightConfig()


def mxfp8_weight(weight: Tensor) -> Tensor:
    """Quantise as `quantize_` with `mxfp8_config` does."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs

    config = mxfp8_config()
    shared = {
        "block_size": config.block_size,
        "kernel_preference": config.kernel_preference,
        "is_swizzled_scales": True,
        "scaling_mode": config.scaling_mode,
    }
    inputs = QuantizeTensorToMXKwargs(elem_dtype=config.activation_dtype, **shared)
    made: Tensor = MXTensor.to_mx(weight.contiguous(), config.weight_dtype, act_quant_kwargs=inputs, **shared)
    return made


def nvfp4_config(triton: bool) -> Any:
    """Return E2M1 with E4M3 scales per block of 16 and one outer scale, that of the activations at each call."""
    from torchao.prototype.mx_formats import NVFP4DynamicActivationNVFP4WeightConfig

    return NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=triton)


def nvfp4_weight(weight: Tensor, triton: bool) -> Tensor:
    """Quantise as `quantize_` with `nvfp4_config` does, a weight of zeros aside."""
    from torchao.prototype.mx_formats.nvfp4_tensor import (
        NVFP4Tensor,
        QuantizeTensorToNVFP4Kwargs,
        per_tensor_amax_to_scale,
    )

    config = nvfp4_config(triton)
    inputs = QuantizeTensorToNVFP4Kwargs(
        use_dynamic_per_tensor_scale=config.use_dynamic_per_tensor_scale,
        use_triton_kernel=config.use_triton_kernel,
        is_swizzled_scales=True,
    )
    scale = per_tensor_amax_to_scale(weight.abs().amax())
    scale = torch.where(torch.isinf(1.0 / scale), 1.0, scale)
    made: Any = NVFP4Tensor.to_nvfp4(
        weight, per_tensor_scale=scale, is_swizzled_scales=True, use_triton_kernel=False, act_quant_kwargs=inputs
    )
    made.use_triton_kernel = config.use_triton_kernel
    result: Tensor = made
    return result
