"""A dispatch mode inside of fake tensors: PyTorch computes shapes alone, and what is asked of them can be watched."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

READ = torch.ops.aten._local_scalar_dense.default
ALL = (torch.ops.aten.all.default, torch.ops.aten.all.dim)
NOT = torch.ops.aten.bitwise_not.default
NUMBER = torch.ops.aten.scalar_tensor.default
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)


class FakeMode(TorchDispatchMode):
    """Enters a FakeTensorMode with itself; subclasses define __torch_dispatch__.

    Attributes:
        fake: the mode that makes tensors fake.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __enter__(self):
        """Enter both modes: PyTorch does not look for a driver as long as the fake one is there."""
        self.fake.__enter__()
        return super().__enter__()

    def __exit__(self, *problem):
        """Leave both."""
        super().__exit__(*problem)
        self.fake.__exit__(*problem)


def negate(negation: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return a fake mask's negation, remembered as such: see `rows_of`."""
    negation.denied = not getattr(mask, "denied", False)
    return negation


def rows_of(index: torch.Tensor | None) -> torch.Tensor | None:
    """Return a mask as the rows it names, which no fake tensor can tell: all, or if negated none.

    A network that takes the masked rows apart and joins them again so gets as many as it had.
    """
    if index is None or index.dtype != torch.bool:
        return index
    if isinstance(index, FakeTensor):
        count = 0 if getattr(index, "denied", False) else len(index)
        return torch.empty(count, dtype=torch.int64, device=index.device)
    with unset_fake_temporarily():
        return index.nonzero().flatten()
