"""The network of a copy as it is called: its own dtype, no autocast, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

FLOAT32_INPUTS = frozenset({"timestep", "guidance"})
"""Keyword inputs that are never cast: bfloat16 cannot tell timestep 899 from 900."""
COMPILER = "inductor"


class LowPrecisionNetwork(nn.Module):
    """A network that is called as the original is: floating-point inputs are cast to its own dtype, autocast is off.

    Whatever else the caller asks of it, such as `config`, is the inner network's.

    Args:
        inner: the network.
        dtype: its own.
        compiler: a backend of torch.compile, by name or a function; None leaves it uncompiled.
    """

    def __init__(self, inner: nn.Module, dtype: torch.dtype, compiler: str | Callable[..., Any] | None = None):
        super().__init__()
        self.inner = inner
        self.compute_dtype = dtype
        self.compiled = None if compiler is None else Compiled(inner, compiler)

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
        run = self.inner if self.compiled is None else self.compiled
        with torch.autocast(device.type, enabled=False):
            return run(*inputs, **named)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Inside, it runs uncompiled, so that its products pass the dispatcher."""
        compiled, self.compiled = self.compiled, None
        try:
            yield
        finally:
            self.compiled = compiled

    def _cast(self, value: Any) -> Any:
        return value.to(self.compute_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class Compiled:
    """A compiled network that counts its graphs and tells when it compiles again for shapes that it knows.

    The first batch size gives a graph of its own, the second one for any size, and a batch of one another: then no
    more. The whole network is one graph; what cannot be captured is an error of torch.compile's, never a silent part.

    Args:
        network: what is compiled.
        compiler: a backend of torch.compile.
    """

    def __init__(self, network: nn.Module, compiler: str | Callable[..., Any]):
        from torch._dynamo.backends.registry import lookup_backend

        self.graphs = 0
        self.again = 0
        self._known: set[tuple[Any, ...]] = set()
        self._inner: Any = lookup_backend(compiler) if isinstance(compiler, str) else compiler
        self._run: Any = torch.compile(_with_own_code(network), fullgraph=True, backend=self._counted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output."""
        before, call = self.graphs, _signature(args, kwargs)
        output = self._run(*args, **kwargs)
        if call in self._known:
            self.again += self.graphs - before
        self._known.add(call)
        return output

    def _counted(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._inner(graph, inputs, **options)


def _with_own_code(network: nn.Module) -> Callable[..., Any]:
    """A function that calls the network. torch.compile limits graphs by code object, which copies would share."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return network(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name="run_copy")
    return run


def _signature(args: Any, kwargs: Any) -> tuple[Any, ...]:
    leaves = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x) for x in tree_leaves((args, kwargs))]
    return (tuple(sorted(kwargs)), *leaves)
