"""Bytes that are alive and operations that are done, counted on fake tensors: no GPU and no memory is needed.

PyTorch's FakeTensorMode computes shapes alone; a dispatch mode adds up the storages that are alive. Tensors are on a
fake CPU, because the backward pass of a fake CUDA device asks for a driver; `like_cuda` gives them CUDA's rules of
autocast and its RMS norm, which is one kernel. What kernels take as workspaces, and what an allocator wastes, is not
seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from diffrl.cost.cuda_rules import cuda_rules
from diffrl.cost.fake_mode import ALL, INDEXING, NOT, NUMBER, READ, FakeMode, negate, rows_of


class FusedNorm(torch.autograd.Function):
    """CUDA's RMS norm without its numbers: it keeps its input, its weight and one float32 number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        """Return a tensor as large as x."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return gradients of x, and of the weight where it is trained."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight) if ctx.needs_input_grad[1] else None


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Stand in for PyTorch's function."""
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.float(), None if weight is None else weight.float()
    normed: Tensor = FusedNorm.apply(x, weight)
    return normed


class LiveMemory(FakeMode):
    """Within it, tensors are fake but for those that were there before, and bytes of living storages are added up.

    Attributes:
        live: bytes that are alive, of tensors made within.
        peak: the most that were.
        flops: operations of matrix products, convolutions and attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.flops = 0
        self._known: set[weakref.ref[Any]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors)  # masks, which networks read
        if known or (func is NUMBER and kwargs.get("dtype") == torch.int64):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is READ and tensors:
            return hasattr(tensors[0], "holds")  # `all` holds, `any` does not, as of finite images and of no image
        if func in INDEXING:
            args = (args[0], [rows_of(index) for index in args[1]], *args[2:])
        output = func(*args, **kwargs)
        if func in ALL:
            output.holds = True
        if func is NOT:
            negate(output, args[0])
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += count(*args, **kwargs, out_val=output)
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return output

    def _see(self, storage: Any) -> None:
        size = storage.nbytes()
        reference = weakref.ref(storage, lambda dead: self._forget(dead, size))
        if reference not in self._known:
            self._known.add(reference)
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, reference: weakref.ref[Any], size: int) -> None:
        self._known.discard(reference)
        self.live -= size


@contextmanager
def like_cuda() -> Iterator[LiveMemory]:
    """Enter a `LiveMemory` under CUDA's rules, in which modules are where and in which dtype they were made."""
    with (
        torch.random.fork_rng(devices=[]),
        LiveMemory() as memory,
        patch.object(nn.functional, "rms_norm", rms_norm),
        cuda_rules(),
        patch.object(nn.Module, "_apply", lambda module, *_, **__: module),
    ):
        yield memory
