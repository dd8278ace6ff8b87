"""NVFP4 by transformer-engine, an optional third engine; written from its source (2.20), run on no GPU so far.

bfloat16 weights stay resident and their quantised form is cached beside them: this engine saves time, not memory.
Blocks are 1 x 16 without random Hadamard transforms, as its defaults are made for training. `DelayedScaling` with
`fp8_format=E2M1` is not NVFP4. Its forward cannot be compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.engines.base import Defaults, odd_sizes

MULTIPLE = 16


@cache
def recipe() -> Any:
    """Return NVFP4 for inference."""
    from transformer_engine.common.recipe import NVFP4BlockScaling

    return NVFP4BlockScaling(disable_rht=True, disable_2d_quantization=True)


class TeLinear(nn.Module):
    """A `te.Linear` whose weight is quantised again after every refresh and only then."""

    def __init__(self, linear: nn.Linear):
        import transformer_engine.pytorch as te

        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.inner: Any = te.Linear(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            params_dtype=torch.bfloat16,
            device=linear.weight.device,
        ).requires_grad_(False)
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take over weight (N, K) and bias (N,) in place; the next call quantises."""
        self.inner.weight.copy_(weight)
        if bias is not None:
            self.inner.bias.copy_(bias)
        self.stale = True

    def dequantised(self) -> Tensor:
        """Return the resident bfloat16 weight (N, K) as float32: the quantised one is transformer-engine's own."""
        weight: Tensor = self.inner.weight.float()
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """Return x (..., K) to (..., N) bfloat16."""
        import transformer_engine.pytorch as te

        with te.autocast(enabled=True, recipe=recipe()):
            y: Tensor = self.inner(x, is_first_microbatch=self.stale)
        self.stale = False
        return y


@dataclass(frozen=True)
class Te(Defaults):
    """NVFP4; the outer scale of the activations is one for the batch."""

    largest_error: float
    scaling: str
    name: str = "te"
    dispatched: bool = False
    batch_dependent: bool = True
    compute_dtype: torch.dtype = torch.float4_e2m1fn_x2
    outside_dtype: torch.dtype = torch.bfloat16

    def unfit(self, linear: nn.Linear) -> str | None:
        """Return both sizes must be multiples of 16."""
        return odd_sizes(linear, MULTIPLE)

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return the layer as a `te.Linear`."""
        return TeLinear(linear)

    def inspect(self, layer: nn.Module) -> str | None:
        """Describe another recipe or, after a run, a cached weight of another class: PyTorch sees no product."""
        if not recipe().nvfp4():
            return "its recipe is not NVFP4"
        cached = getattr(cast(TeLinear, layer).inner, "_fp8_workspaces", {}).values()
        wrong = {type(weight).__name__ for weight in cached if "NVFP4" not in type(weight).__name__}
        return f"its quantised weight is a {', '.join(sorted(wrong))}" if wrong else None

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Return one outer scale for each operand, multiplied in float32."""
        return fake_quantize_nvfp4(x) @ fake_quantize_nvfp4(weight.bfloat16().float()).T
