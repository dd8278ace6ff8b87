"""nvidia-modelopt's fake quantisation as an engine: its numbers, on any device, no speed.

Activations are scaled at every call. A calibrated (static) activation scale is the export's business
(`diffrl export --format modelopt-fp8`): in a policy that changes with every update it goes stale, silently. modelopt
itself renews a weight's scale only while it calibrates, and never shrinks it; here it is set at every refresh.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffrl.precision.engines.base import Defaults

Bits = int | tuple[int, int]


def quantise_quietly(module: nn.Module, config: Mapping[str, Any], forward: Callable[[Any], None] | None) -> Any:
    """Return `mtq.quantize` without its prints. It changes `module`."""
    import modelopt.torch.quantization as mtq

    with contextlib.redirect_stdout(io.StringIO()):
        return mtq.quantize(module, config, forward)


def dynamic_config(bits: Bits) -> Mapping[str, Any]:
    """Return one scale per output channel, and per token at each call."""
    weight = {"num_bits": bits, "axis": 0}
    inputs = {"num_bits": bits, "axis": None, "type": "dynamic", "block_sizes": {-1: None}}
    return {
        "quant_cfg": [
            {"quantizer_name": "*", "enable": False},
            {"quantizer_name": "*weight_quantizer", "cfg": weight},
            {"quantizer_name": "*input_quantizer", "cfg": inputs},
        ],
        "algorithm": "max",
    }


class ModeloptLinear(nn.Module):
    """A linear layer that modelopt has put quantisers into."""

    def __init__(self, linear: nn.Linear, bits: Bits):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        copied = nn.Linear(
            linear.in_features, linear.out_features, linear.bias is not None, device=linear.weight.device
        ).requires_grad_(False)
        self.inner: Any = quantise_quietly(nn.Sequential(copied), dynamic_config(bits), None)[0]
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take over weight (N, K) and bias (N,) in place, and the largest magnitude of each row."""
        self.inner.weight.copy_(weight)
        amax = self.inner.weight_quantizer.amax
        amax.copy_(weight.abs().amax(dim=1).reshape(amax.shape))
        if bias is not None:
            self.inner.bias.copy_(bias)

    @torch.no_grad()
    def dequantised(self) -> Tensor:
        """Return the weight (N, K) float32, rounded."""
        rounded: Tensor = self.inner.weight_quantizer(self.inner.weight)
        return rounded.float()

    def forward(self, x: Tensor) -> Tensor:
        """Return x (..., K) float32 to (..., N) float32."""
        y: Tensor = self.inner(x.reshape(-1, self.in_features))  # a quantiser keeps the axes of its first input
        return y.view(*x.shape[:-1], self.out_features)


@dataclass(frozen=True)
class Modelopt(Defaults):
    """Fake quantisation by modelopt.

    Args:
        bits: 8, or (exponent, mantissa).
        round: the same rounding, ours; the emulation that it is held to.
        largest_error: as in `Backend`.
    """

    bits: Bits
    round: Callable[[Tensor], Tensor]
    largest_error: float
    name: str = "modelopt"
    compute_dtype: torch.dtype = torch.float32
    outside_dtype: torch.dtype = torch.float32

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return the layer with modelopt's quantisers."""
        return ModeloptLinear(linear, self.bits)

    def inspect(self, layer: nn.Module) -> str | None:
        """Return quantisers that are off or static, or a packed weight without a real product."""
        inner = cast(ModeloptLinear, layer).inner
        for quantiser in (inner.input_quantizer, inner.weight_quantizer):
            if not quantiser.is_enabled or quantiser.num_bits != self.bits:
                return f"a quantiser is {quantiser}"
        if not inner.input_quantizer._dynamic:
            return "its activations have a fixed scale"
        return unreal(inner)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Return the same rounding by our own code."""
        return F.linear(self.round(x), self.round(weight))


def unreal(layer: Any) -> str | None:
    """Describe a packed (`mtq.compress`) layer that multiplies in high precision, or None; after one forward."""
    if not layer.weight_quantizer._dequantize or getattr(layer, "_real_quant_gemm_impl", None) is not None:
        return None
    return "modelopt found no real product for its packed weight and dequantises it"
