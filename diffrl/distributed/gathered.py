"""Whole tensors of a network whose weights are split over ranks, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered if it is sharded; then every rank must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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
