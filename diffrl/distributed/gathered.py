"""Whole tensors of a network whose weights are split over ranks, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is this rank's part of one.

    Nobody can have split it without torch.distributed.tensor, which is not imported just to ask: that takes a third as
    long as torch itself.
    """
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor itself, gathered if it is sharded; then every rank must ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


class Gathered(Mapping[str, Tensor]):
    """Named tensors, each gathered when it is looked up; every rank must look up the same ones in the same order."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return whole(self._tensors[name])

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # the mapping's own would gather it

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
