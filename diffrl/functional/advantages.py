"""Advantages: how much better a sample is than the others of its group."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor


class GroupAdvantage(NamedTuple):
    """Advantages of S samples, and the groups that train nothing.

    Args:
        advantage: (S,) float32; exactly 0 for samples left out and in groups that are counted below.
        zero_spread: groups whose usable rewards are all equal.
        dropped: groups with fewer usable samples than the minimum.
    """

    advantage: Tensor
    zero_spread: int
    dropped: int


def group_advantage(
    rewards: Tensor,
    groups: Tensor,
    ok: Tensor | None = None,
    baseline: Literal["mean", "median"] = "mean",
    std: Literal["group", "batch"] = "group",
    eps: float = 1e-4,
    clamp: float = 5.0,
    minimum: int = 2,
) -> GroupAdvantage:
    """Rewards relative to their group's baseline, in units of a standard deviation.

        A_i = clip((r_i - baseline_group(i)) / (std + eps), -clamp, clamp)

    GRPO, arXiv 2402.03300, section 4.1.2, with Flow-GRPO's (arXiv 2505.05470) *population* standard deviation, which
    divides by the number of samples and not by one less. `baseline="median"` is MC-GRPO, arXiv 2601.22582: in a group
    of odd size the median sample gets exactly 0 and need not be trained; the std is still that about the mean.

    A sample is usable where `ok` is True and its reward is finite. The others enter no statistic and get 0. The
    statistics are computed in float64, so they do not depend on the order of the samples beyond rounding.

    Args:
        rewards: (S,) rewards, in any unit.
        groups: (S,) integer group ids, in any order and with any gaps. Ids, never prompts: two equal prompts with two
            ids are two groups.
        ok: (S,) bool, False where scoring failed; None means that all succeeded.
        baseline: the group's mean, or its median (the mean of the two middle rewards in a group of even size).
        std: spread of the sample's own group, or of all usable rewards at hand, dropped groups included.
        eps: added to the standard deviation, in units of the reward.
        clamp: bound on |A|.
        minimum: fewest usable samples of a group that trains, at least 1.

    Returns:
        GroupAdvantage, on the device of `rewards`.

    Raises:
        ValueError: shapes differ, `groups` is not integer, an option is unknown, `minimum` is below 1, or `eps` or
            `clamp` is negative.
    """
    _check(rewards, groups, ok, baseline, std, eps, clamp, minimum)
    usable = torch.isfinite(rewards) if ok is None else torch.isfinite(rewards) & ok.to(rewards.device)
    if rewards.numel() == 0:
        return GroupAdvantage(rewards.float(), 0, 0)

    row, slot = _layout(groups.to(rewards.device))
    absent = torch.full((int(row.max()) + 1, int(slot.max()) + 1), torch.nan, dtype=torch.float64, device=row.device)
    # One row a group, smallest reward first; NaN, which sorts last, fills the slots of unusable and missing samples.
    table = absent.index_put((row, slot), rewards.double().masked_fill(~usable, torch.nan)).sort(dim=1).values
    count = table.isfinite().sum(dim=1)

    flat = (table[:, 0] == _at(table, count - 1)) & (count >= minimum)
    few = count < minimum
    centre = table.nanmean(dim=1) if baseline == "mean" else _median(table, count)
    spread = _population_std(table) if std == "group" else _population_std(table.reshape(1, -1)).expand_as(centre)

    advantage = ((rewards.double() - centre[row]) / (spread[row] + eps)).clamp(-clamp, clamp)
    trains = usable & ~(flat | few)[row]
    return GroupAdvantage(advantage.float().where(trains, 0.0), int(flat.sum()), int(few.sum()))


def _layout(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Places S samples in a (groups, samples of a group) table: the row and the column of each."""
    _, row, size = torch.unique(groups, return_inverse=True, return_counts=True)
    order = torch.argsort(row, stable=True)
    first = size.cumsum(0) - size
    slot = torch.empty_like(row)
    slot[order] = torch.arange(row.numel(), device=row.device) - first[row[order]]
    return row, slot


def _at(table: Tensor, column: Tensor) -> Tensor:
    """One entry of each row; the first where the column is negative."""
    return table.gather(1, column.clamp_min(0).unsqueeze(1)).squeeze(1)


def _median(ordered: Tensor, count: Tensor) -> Tensor:
    """Median of each row's first `count` entries, which are in order."""
    return 0.5 * (_at(ordered, (count - 1) // 2) + _at(ordered, count // 2))


def _population_std(table: Tensor) -> Tensor:
    """Standard deviation of each row without its NaNs, dividing by their number."""
    return (table - table.nanmean(dim=1, keepdim=True)).square().nanmean(dim=1).sqrt()


def _check(
    rewards: Tensor,
    groups: Tensor,
    ok: Tensor | None,
    baseline: str,
    std: str,
    eps: float,
    clamp: float,
    minimum: int,
) -> None:
    for name, tensor in {"groups": groups, "ok": rewards if ok is None else ok}.items():
        if rewards.ndim != 1 or tensor.shape != rewards.shape:
            raise ValueError(
                f"rewards and {name} must both be (S,). Got {tuple(rewards.shape)} and {tuple(tensor.shape)}."
            )
    if groups.is_floating_point() or groups.dtype == torch.bool:
        raise ValueError(f"groups must hold integer ids. Got dtype {groups.dtype}.")
    if baseline not in ("mean", "median"):
        raise ValueError(f"baseline must be 'mean' or 'median'. Got {baseline!r}.")
    if std not in ("group", "batch"):
        raise ValueError(f"std must be 'group' or 'batch'. Got {std!r}.")
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1. Got {minimum}.")
    if eps < 0 or clamp < 0:
        raise ValueError(f"eps and clamp must be at least 0. Got eps={eps}, clamp={clamp}.")
