"""The network of a copy as it is called: its own dtype, no autocast, compiled or not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from diffrl.precision.compiled import Backend, CompiledBlocks, compile_network

FLOAT32_INPUTS = frozenset({"timestep", "guidance"})
"""Keyword inputs that are never cast: bfloat16 cannot tell timestep 899 from 900."""


class LowPrecisionNetwork(nn.Module):
    """A network that is called as the original is: floating-point inputs are cast to its own dtype, autocast is off.

    Whatever else the caller asks of it, such as `config`, is the inner network's.

    Args:
        inner: the network.
        dtype: its own.
        compiler: a backend of torch.compile for its blocks, by name or a function; None leaves them uncompiled.
    """

    def __init__(self, inner: nn.Module, dtype: torch.dtype, compiler: Backend | None = None):
        super().__init__()
        self.inner = inner
        self.compute_dtype = dtype
        self.compiled: CompiledBlocks | None = (
            None if compiler is None else compile_network(inner, compiler, whole=True)
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The inner network's output, in its own dtype."""
        inputs = [self._cast(value) for value in args]
        named = {name: value if name in FLOAT32_INPUTS else self._cast(value) for name, value in kwargs.items()}
        device = next(self.inner.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return self.inner(*inputs, **named)

    def eager(self) -> AbstractContextManager[None]:
        """Inside, it runs uncompiled, so that its products pass the dispatcher."""
        return nullcontext() if self.compiled is None else self.compiled.off()

    def _cast(self, value: Any) -> Any:
        return value.to(self.compute_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
