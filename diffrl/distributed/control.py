"""How ranks talk: numbers and small objects over the CPU, so that no GPU's collective is open while one takes its time.

A rank may wait for a judge, write a checkpoint or draw a report while the others come to their next exchange. Over NCCL
they would be aborted by its watchdog, without a word; here they wait as long as the settings let a rank take, and a
process that has ended is noticed at once, by its closed connection.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Control:
    """A process group of all ranks over gloo.

    Args:
        patience: how long to wait for a rank that does not come.
    """

    def __init__(self, patience: timedelta):
        self._group: Any = torch.distributed.new_group(backend="gloo", timeout=patience)
        self._world = torch.distributed.get_world_size()

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows (B, ...) of all ranks in rank order; all are on the CPU, and as many on each."""
        parts = [torch.empty_like(rows) for _ in range(self._world)]
        torch.distributed.all_gather(parts, rows.contiguous(), group=self._group)
        return torch.cat(parts)

    def objects(self, value: T) -> list[T]:
        """Return every rank's value in rank order."""
        values: list[Any] = [None] * self._world
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def sum(self, values: Tensor) -> Tensor:
        """Return the elementwise sum over ranks; all are on the CPU."""
        total = values.clone()
        torch.distributed.all_reduce(total, group=self._group)
        return total

    def most(self, number: int) -> tuple[int, int]:
        """Return the largest and the smallest of the ranks' numbers."""
        votes = torch.tensor([number, -number])
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX, group=self._group)
        return int(votes[0]), -int(votes[1])
