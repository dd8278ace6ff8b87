"""Rows that carry a group id: where each falls in its group, and the statistics of every group."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class GroupTable(NamedTuple):
    """Rewards of S rows sorted into G groups; unusable rows enter no statistic.

    Args:
        row: (S,) int64 group of each row, 0 to G - 1.
        ordered: (G, M) float64 each group's usable rewards, smallest first, and then NaN.
        size: (G,) int64 usable rewards of each group.
    """

    row: Tensor
    ordered: Tensor
    size: Tensor

    @property
    def flat(self) -> Tensor:
        """(G,) bool, True where all usable rewards are equal: by comparison, since rounding may give equals a std."""
        return self.ordered[:, 0] == _at(self.ordered, self.size - 1)

    @property
    def mean(self) -> Tensor:
        """(G,) float64, NaN for a group without usable rewards."""
        return self.ordered.nanmean(dim=1)

    @property
    def median(self) -> Tensor:
        """(G,) float64, the mean of the two middle rewards in a group of even size."""
        return self._middle(self.ordered)

    @property
    def std(self) -> Tensor:
        """(G,) float64 population standard deviation."""
        return (self.ordered - self.mean.unsqueeze(1)).square().nanmean(dim=1).sqrt()

    @property
    def mad(self) -> Tensor:
        """(G,) float64 median absolute deviation from the median; exactly 0 where more than half are equal."""
        distances = (self.ordered - self.median.unsqueeze(1)).abs().sort(dim=1).values  # NaN stays last
        return self._middle(distances)

    def _middle(self, ordered: Tensor) -> Tensor:
        """Return (G,) the median of each row's first `size` entries, the mean of the two middle ones if even."""
        return 0.5 * (_at(ordered, (self.size - 1) // 2) + _at(ordered, self.size // 2))


def group_table(rewards: Tensor, groups: Tensor, usable: Tensor) -> GroupTable:
    """Sort rewards into groups.

    Args:
        rewards: (S,), S at least 1.
        groups: (S,) integer ids, in any order and with any gaps.
        usable: (S,) bool.
    """
    row, slot = layout(groups)
    absent = torch.full((int(row.max()) + 1, int(slot.max()) + 1), torch.nan, dtype=torch.float64, device=row.device)
    # NaN, which sorts last, fills the slots of unusable and missing rows.
    ordered = absent.index_put((row, slot), rewards.double().masked_fill(~usable, torch.nan)).sort(dim=1).values
    return GroupTable(row, ordered, ordered.isfinite().sum(dim=1))


def layout(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Place S rows in a (groups, rows of a group) table.

    Args:
        groups: (S,) integer ids.

    Returns:
        The table row and column of each, (S,) int64: its group, and how many rows of its group come before it.
    """
    _, row, size = torch.unique(groups, return_inverse=True, return_counts=True)
    order = torch.argsort(row, stable=True)
    first = size.cumsum(0) - size
    slot = torch.empty_like(row)
    slot[order] = torch.arange(row.numel(), device=row.device) - first[row[order]]
    return row, slot


def joint_ids(first: Tensor, second: Tensor) -> Tensor:
    """Return one id for each pair of ids, (S,) int64: rows share it where they share both."""
    (_, row), (_, column) = (torch.unique(ids, return_inverse=True) for ids in (first, second))
    return torch.as_tensor(row * (len(first) + 1) + column)


def _at(table: Tensor, column: Tensor) -> Tensor:
    """Return one entry of each row; the first where the column is negative."""
    return table.gather(1, column.clamp_min(0).unsqueeze(1)).squeeze(1)
