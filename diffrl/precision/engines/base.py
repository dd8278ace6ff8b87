"""What runs a precision: the interface that a backend fills, and what most of them share."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor, nn

from diffrl.precision.facts import ENGINES, dtype_name_around


class LowPrecisionLinear(Protocol):
    """A linear layer in low precision, an `nn.Module` too: x (..., K) to (..., N).

    Its weights are parameters or buffers, allocated once.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """X W^T + b."""
        ...

    def refresh(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take over weight (N, K) and bias (N,) in place; every storage stays where it is."""
        ...

    def dequantised(self) -> Tensor:
        """Return the weight that its codes and scales stand for: (N, K) float32."""
        ...


class Backend(Protocol):
    """One way to run one precision; it holds no state."""

    @property
    def name(self) -> str:
        """The engine's name in the configuration."""
        ...

    @property
    def real(self) -> bool:
        """Whether the matrix product itself runs in low precision; only such a backend serves `engine: auto`."""
        ...

    @property
    def whole(self) -> bool:
        """Whether every layer is converted and exclusions do not apply."""
        ...

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of both operands of the matrix product, as a dispatcher sees them."""
        ...

    @property
    def scale_dtype(self) -> torch.dtype | None:
        """Dtype of the block scales that the product itself takes, where it takes any but float32."""
        ...

    @property
    def dispatched(self) -> bool:
        """Whether the product passes PyTorch's dispatcher, where it can be watched."""
        ...

    @property
    def outside_dtype(self) -> torch.dtype:
        """What the rest of the network computes in, and a layer's input and output."""
        ...

    @property
    def largest_error(self) -> float:
        """The relative error of a healthy layer on normal data, and of its weight, stays well below this."""
        ...

    @property
    def scaling(self) -> str:
        """What shares a scale, in words."""
        ...

    @property
    def batch_dependent(self) -> bool:
        """Whether a sample's numbers depend on the others of its batch."""
        ...

    def on(self, device: torch.device) -> Backend:
        """Return the backend as it runs on this device."""
        ...

    def unfit(self, linear: nn.Linear) -> str | None:
        """Return why this layer cannot be converted, or None; reads its sizes only."""
        ...

    def convert(self, linear: nn.Linear) -> nn.Module:
        """Return a `LowPrecisionLinear` of the layer, on its device."""
        ...

    def inspect(self, layer: nn.Module) -> str | None:
        """Describe what a converted layer should not hold (class and dtype of its weight, settings), or return None."""
        ...

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Return x W^T, (M, N), as it should be, from x (M, K) and weight (N, K), all float32; None if not emulated."""
        ...


class Defaults:
    """What most backends answer."""

    name: str
    whole = False
    dispatched = True
    batch_dependent = False
    scale_dtype: torch.dtype | None = None
    scaling = "a scale per token and per output channel"

    @property
    def real(self) -> bool:
        """As the engine's record says."""
        return ENGINES[self.name].real

    def on(self, device: torch.device) -> Self:
        """Return the same everywhere."""
        return self

    def unfit(self, linear: nn.Linear) -> str | None:
        """Return None: any size will do."""
        return None


class FrozenLinear(nn.Module):
    """What low-precision linear layers share: sizes and the bias.

    Args:
        linear: the layer that it stands for.
        dtype: of the bias.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, dtype: torch.dtype):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().to(dtype, copy=True), False)
        self.register_parameter("bias", bias)

    def copy_bias(self, bias: Tensor | None) -> None:
        """Take over a bias (N,) in place."""
        if bias is not None and self.bias is not None:
            self.bias.copy_(bias)


def dtype_around(device: torch.device) -> torch.dtype:
    """Return what the rest of a network computes in where our own layers are in low precision."""
    dtype: torch.dtype = getattr(torch, dtype_name_around(device.type))
    return dtype


def odd_sizes(linear: nn.Linear, *multiples: int) -> str | None:
    """Describe a layer whose K and N are no multiples of these (one for both, or one each), or return None."""
    sizes, each = (linear.in_features, linear.out_features), multiples * (2 // len(multiples))
    if all(size % multiple == 0 for size, multiple in zip(sizes, each, strict=True)):
        return None
    return f"{sizes[0]} x {sizes[1]} is no multiple of {' x '.join(map(str, multiples))}"


def wrong_dtype(tensor: Tensor, expected: torch.dtype) -> str | None:
    """Describe a weight that is held in another dtype than expected, or return None."""
    return None if tensor.dtype == expected else f"its weight is {tensor.dtype}, not {expected}"


def row_major(x: Tensor) -> Tensor:
    """Return the tensor, contiguous, copied only if it is not; in eager mode and under torch.compile.

    Inductor lays a fused result out as its inputs lie and `aten._scaled_mm` then refuses it; what enters `as_strided`
    keeps the strides that it has in eager mode. For a contiguous tensor that is a view of itself.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())
