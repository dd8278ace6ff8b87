"""int8 with one scale per token and per output channel: symmetric, activations dynamic, products exact in int32.

Own layer instead of torchao's: torchao 0.18 leaves the int8 product for an int32 or float32 one on the CPU, on sizes
that are no multiple of 8 and on any exception, without a word (PRECISION.md, section 2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INT8_MAX = 127.0
CUDA_MULTIPLE = 8
CUDA_MIN_ROWS = 17


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 along the last axis, to nearest, ties to even.

    Args:
        x: (..., K) float32.

    Returns:
        Codes (..., K) int8 in [-127, 127], and scales (..., 1) float32 such that x is about codes * scales. A row of
        zeros has scale 1.
    """
    scale = x.abs().amax(dim=-1, keepdim=True) / INT8_MAX
    scale = torch.where(torch.isinf(1.0 / scale), 1.0, scale)
    return (x / scale).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer whose product is `aten._int_mm`."""

    weight: nn.Parameter
    scale: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        device = linear.weight.device
        self.weight = nn.Parameter(torch.empty_like(linear.weight, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(linear.out_features, device=device), requires_grad=False)
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().float().clone(), requires_grad=False)
        self.register_parameter("bias", bias)
        self.refresh(linear.weight, linear.bias)

    @torch.no_grad()
    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantise weight (N, K) and take over bias (N,), in place."""
        codes, scale = quantize_int8(weight.float())
        self.weight.copy_(codes)
        self.scale.copy_(scale.squeeze(-1))
        if bias is not None and self.bias is not None:
            self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """X (..., K) float32 to (..., N) float32."""
        codes, scale = quantize_int8(x.reshape(-1, self.in_features))
        rows = codes.shape[0]
        if codes.is_cuda and rows < CUDA_MIN_ROWS:
            codes = F.pad(codes, (0, 0, 0, CUDA_MIN_ROWS - rows))
        y = torch._int_mm(codes, self.weight.T)[:rows].float().mul_(scale).mul_(self.scale)
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.view(*x.shape[:-1], self.out_features)


class Int8:
    """Real on CPUs and CUDA GPUs."""

    name = "torch"
    real = True
    whole = False
    compute_dtype = torch.int8
    outside_dtype = torch.float32
    largest_error = 0.05

    def available(self, device: torch.device) -> str | None:
        """CPU and CUDA."""
        return None if device.type in ("cpu", "cuda") else f"int8 needs a CPU or a CUDA GPU, not {device}"

    def unfit(self, linear: nn.Linear) -> str | None:
        """On CUDA both sizes must be multiples of 8."""
        sizes = (linear.in_features, linear.out_features)
        if linear.weight.is_cuda and any(size % CUDA_MULTIPLE for size in sizes):
            return f"{sizes[0]} x {sizes[1]} is no multiple of {CUDA_MULTIPLE}"
        return None

    def convert(self, linear: nn.Linear) -> nn.Module:
        """The layer in int8."""
        return Int8Linear(linear)

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The same rounding, multiplied in float32."""
        return fake_quantize_int8(x) @ fake_quantize_int8(weight).T


def fake_quantize_int8(x: Tensor) -> Tensor:
    """`quantize_int8` and back: (..., K) float32."""
    codes, scale = quantize_int8(x)
    return codes.float().mul_(scale)
