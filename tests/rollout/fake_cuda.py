"""A CUDA device that is not there: tensors with shapes, dtypes and devices, and no numbers.

PyTorch's FakeTensorMode refuses operations between devices as a GPU would, needs no memory, and cannot read a value.
Here only what lies on the device is fake: what diffrl counts on the host (nodes, addresses, noise) is computed.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
READ = torch.ops.aten._local_scalar_dense.default
COPY = torch.ops.aten._to_copy.default
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)
ALL = (torch.ops.aten.all.default, torch.ops.aten.all.dim)
VALUES = {torch.int64: 1, torch.int32: 1}


class FakeCuda(TorchDispatchMode):
    """Within it, tensors that are asked for on cuda are fake, and whoever makes the host wait for them is counted.

    What is read of the device is as in a healthy run: `all` holds, `any` does not, numbers are .5 or 1.

    Attributes:
        waits: what made the host wait -> how often: "read" (`item`, `tolist`, `if tensor`), "to host", "to device" (a
            copy from pageable memory), "index from host" (a device tensor indexed by one of the host).
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()

    def __enter__(self):
        """Enter both modes: PyTorch does not look for a driver as long as the fake one is there."""
        self.fake.__enter__()
        return super().__enter__()

    def __exit__(self, *problem):
        """Leave both."""
        super().__exit__(*problem)
        self.fake.__exit__(*problem)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        fake = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
        on_cuda = any(tensor.device.type == "cuda" for tensor in fake)
        device = kwargs.get("device")
        to_cuda = device is not None and torch.device(device).type == "cuda"
        if func is READ and fake:
            self.waits["read"] += 1
            return hasattr(fake[0], "holds") if fake[0].dtype == torch.bool else VALUES.get(fake[0].dtype, 0.5)
        if func is COPY and device is not None and to_cuda != on_cuda:
            self.waits["to device" if to_cuda else "to host"] += 1
        if func in INDEXING and on_cuda and any(tensor.device.type == "cpu" and tensor.ndim for tensor in tensors):
            self.waits["index from host"] += 1
            args = (args[0], [_integers(index) for index in args[1]], *args[2:])
        if fake or to_cuda:
            found = func(*args, **kwargs)
            if func in ALL:
                found.holds = True
            return found
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def _integers(index):
    """A mask of the host as the rows that it names, which no fake tensor can tell."""
    if index is None or index.dtype != torch.bool or isinstance(index, FakeTensor):
        return index
    with unset_fake_temporarily():
        return index.nonzero().flatten()
