"""A network's repeated blocks, compiled one by one: blocks of a kind share their graphs, so that few are made.

torch.compile counts graphs by function, and runs what exceeds its limit uncompiled without an error. Here each kind of
block has a function of its own for each network, and one more where LoRA is off, with a limit that fits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

COMPILER = "inductor"
Backend = str | Callable[..., Any]
GRAPHS = 64
"""Of a kind of block, at most: with and without gradients, a batch of one and others, times blocks that differ."""


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the blocks that a diffusers model names as its repeated ones."""
    names: set[str] = set()
    for kind in {type(module) for module in network.modules()}:
        names.update(getattr(kind, "_repeated_blocks", None) or getattr(kind, "_no_split_modules", None) or ())
    return [module for module in network.modules() if type(module).__name__ in names]


class CompiledBlocks:
    """Compiles blocks in place, at their first calls, and keeps what torch.compile says of them.

    Args:
        blocks: of one network.
        backend: of torch.compile.
        whole: each block must be one graph: what cannot be captured is an error.

    Attributes:
        graphs: how many were made.
        again: how often a block was compiled again for shapes that it had been called with.
        missed: why something was not compiled, in torch's words, each once.
    """

    def __init__(self, blocks: list[nn.Module], backend: Backend = COMPILER, whole: bool = False):
        from torch._dynamo.backends.registry import lookup_backend

        self.backend, self._whole = backend, whole
        self.graphs = self.again = 0
        self.missed: list[str] = []
        self._inner: Any = lookup_backend(backend) if isinstance(backend, str) else backend
        self._runs: dict[tuple[type, bool], Callable[..., Any]] = {}
        self._known: set[tuple[Any, ...]] = set()
        self._off = self._reference = False
        for number, block in enumerate(blocks):
            block._compiled_call_impl = partial(self._call, number, block)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run the blocks uncompiled until the block ends."""
        before, self._off = self._off, True
        try:
            yield
        finally:
            self._off = before

    @contextmanager
    def of_reference(self) -> Iterator[None]:
        """Turn LoRA off within the block, with graphs of their own, so that the policy's are not searched for them."""
        before, self._reference = self._reference, True
        try:
            yield
        finally:
            self._reference = before

    def _call(self, number: int, block: Any, *args: Any, **kwargs: Any) -> Any:
        if self._off:
            return block._call_impl(*args, **kwargs)
        key = (type(block), self._reference)
        if key not in self._runs:
            self._runs[key] = self._compiled()
        before, problems = self.graphs, _problems()
        output = self._runs[key](block, *args, **kwargs)
        if self._whole:
            call = (number, *key, *_signature(args, kwargs))
            self.again += (self.graphs - before) * (call in self._known)
            self._known.add(call)
        elif (now := _problems()) != problems:
            self.missed += [why for why in now if why not in problems and why not in self.missed]
        return output

    def _compiled(self) -> Callable[..., Any]:
        """Return a function that calls a block; its code is its own, as graphs are counted by it."""

        def run(block: Any, *args: Any, **kwargs: Any) -> Any:
            return block._call_impl(*args, **kwargs)

        run.__code__ = run.__code__.replace(co_name="run_block")
        dynamic = None if self._whole else True
        compile_: Any = torch.compile  # its annotations lack the limit
        made: Callable[..., Any] = compile_(
            run, fullgraph=self._whole, dynamic=dynamic, backend=self._counted, recompile_limit=GRAPHS
        )
        return made

    def _counted(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._inner(graph, inputs, **options)


_COMPILED: WeakKeyDictionary[nn.Module, CompiledBlocks] = WeakKeyDictionary()


def compile_network(network: nn.Module, backend: Backend = COMPILER, whole: bool = False) -> CompiledBlocks:
    """Compile a network's repeated blocks; one that names none is a block itself. See `CompiledBlocks`."""
    _COMPILED[network] = made = CompiledBlocks(repeated_blocks(network) or [network], backend, whole)
    return made


def compiled_blocks(network: nn.Module) -> CompiledBlocks | None:
    """Return what `compile_network` made of a network; None of one that runs uncompiled, as copies do at first."""
    return _COMPILED.get(network)


def _problems() -> dict[str, int]:
    """Return why Dynamo left something uncompiled so far, in this process."""
    from torch._dynamo.utils import counters

    return {**counters["graph_break"], **counters["unimplemented"]}


def _signature(args: Any, kwargs: Any) -> tuple[Any, ...]:
    leaves = [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x) for x in tree_leaves((args, kwargs))]
    return (tuple(sorted(kwargs)), *leaves)
