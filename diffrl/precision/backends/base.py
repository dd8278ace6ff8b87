"""What runs a precision: the interface that a backend fills, and the names of those there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn


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


class Backend(Protocol):
    """One way to run one precision. Its registered maker takes no arguments; it holds no state."""

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
        """Of both operands of the matrix product, as a dispatcher sees them."""
        ...

    @property
    def outside_dtype(self) -> torch.dtype:
        """What the rest of the network computes in, and a layer's input and output."""
        ...

    @property
    def largest_error(self) -> float:
        """The relative error of a healthy layer on normal data stays well below this."""
        ...

    def available(self, device: torch.device) -> str | None:
        """Why this device cannot run it, or None."""
        ...

    def unfit(self, linear: nn.Linear) -> str | None:
        """Why this layer cannot be converted, or None."""
        ...

    def convert(self, linear: nn.Linear) -> nn.Module:
        """A `LowPrecisionLinear` of the layer, on its device."""
        ...

    def emulate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """What x W^T should be, (M, N) float32, from x (M, K) and weight (N, K) in float32; None for no emulation."""
        ...


PRECISION_BACKENDS: Mapping[str, Mapping[str, str]] = {
    "bfloat16": {"torch": "diffrl.precision.backends.cast:BFloat16"},
    "int8": {
        "torch": "diffrl.precision.backends.int8:Int8",
        "emulated": "diffrl.precision.backends.emulated:int8",
    },
    "fp8": {"emulated": "diffrl.precision.backends.emulated:fp8"},
    "nvfp4": {"emulated": "diffrl.precision.backends.emulated:nvfp4"},
}
"""Precision, then engine. A new backend is one file and one line here."""
