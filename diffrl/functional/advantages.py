"""Advantages: how much better a sample, or a step of a tree, is than the others of its group.

Standard deviations are population ones everywhere: they divide by the number of rewards, not by one less. Rewards that
are not finite, and those whose `ok` is False, enter no statistic and get exactly 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from diffrl.functional.groups import group_table, joint_ids


class GroupAdvantage(NamedTuple):
    """Advantages of S samples, and the groups that train nothing.

    Args:
        advantage: (S,) float32; exactly 0 for samples left out and in groups that are counted below.
        zero_spread: groups whose usable rewards are all equal; with std "mad" also those of which more than half are.
        dropped: groups with fewer usable samples than the minimum.
    """

    advantage: Tensor
    zero_spread: int
    dropped: int


class Comparison(NamedTuple):
    """Advantages of S samples with the two numbers that each was made with.

    Args:
        group: the advantages.
        centre: (S,) float64 what was subtracted from each reward; NaN where the advantage is 0 without a sum.
        spread: (S,) float64 what the rest was divided by, `eps` included; NaN likewise.
    """

    group: GroupAdvantage
    centre: Tensor
    spread: Tensor


def group_advantage(
    rewards: Tensor,
    groups: Tensor,
    ok: Tensor | None = None,
    baseline: Literal["mean", "median"] = "mean",
    std: Literal["group", "batch", "mad"] = "group",
    eps: float = 1e-4,
    clamp: float = 5.0,
    minimum: int = 2,
    spread: Tensor | None = None,
) -> GroupAdvantage:
    """Return rewards relative to their group's baseline, in units of a spread.

        A_i = clip((r_i - baseline_group(i)) / (std + eps), -clamp, clamp)

    GRPO, arXiv 2402.03300, section 4.1.2, with Flow-GRPO's (arXiv 2505.05470) *population* standard deviation, which
    divides by the number of samples and not by one less. With `baseline="median"` the median sample of a group of odd
    size gets exactly 0 and need not be trained; the std is still that about the mean.

    MC-GRPO, arXiv 2601.22582, is `baseline="median"` with `std="mad"`, the median absolute deviation
    `median_j |r_j - median|`. As in the paper's code there is no factor that would make it a normal's standard
    deviation (1.4826), so advantages come out about half as large again; its eps is 1e-3, its median the lower one of
    a group of even size. Where more than half of a group's rewards are equal the MAD is 0: the paper's code divides the
    others by eps alone, here the group trains nothing and is counted as without spread.

    A sample is usable where `ok` is True and its reward is finite. The others enter no statistic and get 0. The
    statistics are computed in float64, so they do not depend on the order of the samples beyond rounding.

    Args:
        rewards: (S,) rewards, in any unit.
        groups: (S,) integer group ids, in any order and with any gaps. Ids, never prompts: two equal prompts with two
            ids are two groups.
        ok: (S,) bool, False where scoring failed; None means that all succeeded.
        baseline: the group's mean, or its median (the mean of the two middle rewards in a group of even size).
        std: spread of the sample's own group, standard or median absolute deviation, or the standard deviation of all
            usable rewards at hand, dropped groups included.
        eps: added to the spread, in units of the reward.
        clamp: bound on |A|.
        minimum: fewest usable samples of a group that trains, at least 1.
        spread: () a standard deviation known to the caller, such as that of all ranks' rewards, used in place of the
            one that `std` names.

    Returns:
        GroupAdvantage, on the device of `rewards`.

    Raises:
        ValueError: shapes differ, `groups` is not integer, an option is unknown, `std` is "mad" without the median as
            the baseline, `minimum` is below 1, or `eps` or `clamp` is negative.
    """
    return compare(rewards, groups, ok, baseline, std, eps, clamp, minimum, spread).group


def compare(
    rewards: Tensor,
    groups: Tensor,
    ok: Tensor | None = None,
    baseline: Literal["mean", "median"] = "mean",
    std: Literal["group", "batch", "mad"] = "group",
    eps: float = 1e-4,
    clamp: float = 5.0,
    minimum: int = 2,
    spread: Tensor | None = None,
    centre: Tensor | None = None,
) -> Comparison:
    """Return `group_advantage` with the numbers that it was made with, and with a baseline from elsewhere if need be.

    The arguments are those of `group_advantage`. With `centre` (S,) each reward is compared with that in place of what
    `baseline` names; where it is not finite the advantage is 0, but the reward still enters the standard deviation.
    """
    _check(rewards, groups, ok, baseline, std, eps, clamp, minimum)
    usable = _usable(rewards, ok)
    if rewards.numel() == 0:
        return Comparison(GroupAdvantage(rewards.float(), 0, 0), rewards.double(), rewards.double())
    table = group_table(rewards, groups.to(rewards.device), usable)
    few = table.size < minimum
    flat = table.flat & ~few
    if centre is None:
        centre = (table.mean if baseline == "mean" else table.median)[table.row]
    if spread is None and std == "mad":
        spread = table.mad
        flat |= (spread == 0) & ~few
    if spread is None:
        spread = table.std if std == "group" else population_std(rewards, ok)
    centre, divisor = centre.double(), spread.to(table.ordered).expand(len(few))[table.row] + eps
    trains = usable & centre.isfinite() & ~(flat | few)[table.row]
    advantage = ((rewards.double() - centre) / divisor).clamp(-clamp, clamp).float().where(trains, 0.0)
    group = GroupAdvantage(advantage, int(flat.sum()), int(few.sum()))
    return Comparison(group, centre.where(trains, torch.nan), divisor.where(trains, torch.nan))


def population_std(rewards: Tensor, ok: Tensor | None = None) -> Tensor:
    """Return standard deviation of all usable rewards, whatever their group.

    Args:
        rewards: (S,) in any unit.
        ok: (S,) bool; None means that all are.

    Returns:
        () float64; NaN if none is usable.
    """
    usable = rewards[_usable(rewards, ok)].double()
    return (usable - usable.mean()).square().mean().sqrt()


def depth_advantage(
    rewards: Tensor,
    prompt: Tensor,
    depth: Tensor,
    ok: Tensor | None = None,
    baseline: Literal["mean", "median"] = "mean",
    eps: float = 1e-4,
    clamp: float = 5.0,
    minimum: int = 2,
    std: Literal["group", "mad"] = "group",
) -> Tensor:
    """Return each step's reward relative to those of the same prompt at the same depth.

        A_n = clip((r_n - baseline_(prompt, depth)) / (std_(prompt, depth) + eps), -clamp, clamp)

    BranchGRPO, arXiv 2509.06040. All trees of a prompt are compared with one another.

    Args:
        rewards: (N,) of the step that ends in each node, in any unit; NaN at roots, which no step ends in.
        prompt: (N,) integer id of each node's prompt.
        depth: (N,) integer depth of each node, or the step that ends there.
        ok: (N,) bool, False for nodes to leave out; None means that all are good.
        baseline: mean or median of the prompt's nodes at that depth.
        eps: added to the spread, in units of the reward.
        clamp: bound on |A|.
        minimum: fewest usable nodes of a prompt at one depth that train, at least 1.
        std: their standard deviation, or with the median their median absolute deviation (MC-GRPO).

    Returns:
        (N,) float32; exactly 0 for nodes left out, and where a prompt's nodes of one depth are too few or all equal;
        with "mad" also where more than half of them are.

    Raises:
        ValueError: as `group_advantage`, and if `prompt` and `depth` differ in shape.
    """
    ids = _joint_ids(rewards, prompt, depth)
    return group_advantage(rewards, ids, ok, baseline, std, eps, clamp, minimum).advantage


def sibling_advantage(
    rewards: Tensor,
    parent: Tensor,
    prompt: Tensor,
    depth: Tensor,
    centre: Tensor | None = None,
    ok: Tensor | None = None,
    eps: float = 1e-4,
    clamp: float = 5.0,
    minimum: int = 2,
) -> Tensor:
    """Return each step's reward relative to what its origin was worth, in units of the spread at that depth.

        A_n = clip((r_n - centre_parent(n)) / (std_(prompt, depth) + eps), -clamp, clamp)

    Siblings alone would make a poor scale: a pair that is z-scored by itself is always +-1. A lone child of a node that
    is worth what the child is worth gets 0, so this needs trees that split.

    Args:
        rewards: (N,) of the step that ends in each node, in any unit; NaN at roots.
        parent: (N,) int64 row of each node's parent, -1 at roots.
        prompt: (N,) integer id of each node's prompt.
        depth: (N,) integer depth of each node, or the step that ends there.
        centre: (N,) what the steps that leave a node are compared with: its value, where rewards are values too. None
            is 0: step rewards are differences already.
        ok: (N,) bool, False for nodes to leave out; None means that all are good.
        eps: added to the standard deviation, in units of the reward.
        clamp: bound on |A|.
        minimum: fewest usable nodes of a prompt at one depth that train, at least 1.

    Returns:
        (N,) float32; exactly 0 at roots, for nodes left out, where the parent's centre is not finite, and where a
        prompt's rewards of one depth are too few or all equal.

    Raises:
        ValueError: as `depth_advantage`, and if `parent` or `centre` is not (N,).
    """
    for name, tensor in {"parent": parent, "centre": rewards if centre is None else centre}.items():
        _same_shape(rewards, name, tensor)
    ids = _joint_ids(rewards, prompt, depth)
    edges = parent >= 0 if ok is None else ok & (parent >= 0)
    base = origin_value(parent, centre)
    return compare(rewards, ids, edges, "mean", "group", eps, clamp, minimum, centre=base).group.advantage


def origin_value(parent: Tensor, value: Tensor | None) -> Tensor:
    """Return (N,) the value (N,) of the node that each step leaves; 0 everywhere without values."""
    return torch.zeros_like(parent, dtype=torch.float32) if value is None else value[parent.clamp_min(0)]


def gdpo_advantage(
    rewards: Tensor,
    groups: Tensor,
    weights: Tensor,
    ok: Tensor | None = None,
    eps: float = 1e-4,
    clamp: float = 5.0,
    minimum: int = 2,
) -> Tensor:
    """Return several rewards, each normalised in its group before they are added, so that none drowns the others.

        a_i = sum_k w_k * (r_ki - mean_group(i)(r_k)) / (std_group(i)(r_k) + eps)
        A_i = clip(a_i / (std_batch(a) + eps), -clamp, clamp)

    GDPO, arXiv 2601.05242. The paper also subtracts the batch's mean of a, which is 0 because each group's
    is; left out, it cannot turn the exact 0 of a group without any spread into a rounding error.

    Args:
        rewards: (R, S) R rewards of S samples, each in its own unit.
        groups: (S,) integer group ids, in any order and with any gaps.
        weights: (R,) weight of each reward.
        ok: (S,) bool, False where scoring failed; None means that all succeeded.
        eps: added to each standard deviation.
        clamp: bound on |A|.
        minimum: fewest usable samples of a group that trains, at least 1.

    Returns:
        (S,) float32; exactly 0 for samples with a reward that failed, in groups that are too few, and where no reward
        of the group has any spread. The samples of too small groups do not enter the batch's standard deviation.

    Raises:
        ValueError: shapes differ, `groups` is not integer, `minimum` is below 1, or `eps` or `clamp` is negative.
    """
    if rewards.ndim != 2 or weights.shape != rewards.shape[:1]:
        raise ValueError(
            f"rewards must be (R, S) and weights (R,). Got {tuple(rewards.shape)} and {tuple(weights.shape)}."
        )
    usable = torch.isfinite(rewards).all(dim=0) if ok is None else torch.isfinite(rewards).all(dim=0) & ok
    total = torch.zeros(rewards.shape[1], dtype=torch.float64, device=rewards.device)
    for reward, weight in zip(rewards, weights, strict=True):
        normalised = group_advantage(reward, groups, usable, eps=eps, clamp=torch.inf, minimum=minimum)
        total += weight.double() * normalised.advantage.double()
    if total.numel() == 0:
        return total.float()
    table = group_table(total, groups, usable)
    trains = usable & (table.size >= minimum)[table.row]
    advantage = (total / (population_std(total, trains) + eps)).clamp(-clamp, clamp)
    return advantage.float().where(trains, 0.0)


def _usable(rewards: Tensor, ok: Tensor | None) -> Tensor:
    finite = torch.isfinite(rewards)
    return finite if ok is None else finite & ok.to(rewards.device)


def _joint_ids(rewards: Tensor, prompt: Tensor, depth: Tensor) -> Tensor:
    for name, tensor in {"prompt": prompt, "depth": depth}.items():
        _same_shape(rewards, name, tensor)
    return joint_ids(prompt, depth).to(rewards.device)


def _same_shape(rewards: Tensor, name: str, tensor: Tensor) -> None:
    if rewards.ndim != 1 or tensor.shape != rewards.shape:
        raise ValueError(f"rewards and {name} must both be (S,). Got {tuple(rewards.shape)} and {tuple(tensor.shape)}.")


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
        _same_shape(rewards, name, tensor)
    if groups.is_floating_point() or groups.dtype == torch.bool:
        raise ValueError(f"groups must hold integer ids. Got dtype {groups.dtype}.")
    if baseline not in ("mean", "median"):
        raise ValueError(f"baseline must be 'mean' or 'median'. Got {baseline!r}.")
    if std not in ("group", "batch", "mad"):
        raise ValueError(f"std must be 'group', 'batch' or 'mad'. Got {std!r}.")
    if std == "mad" and baseline != "median":
        raise ValueError(f"std 'mad' goes with baseline 'median', from which it is measured. Got {baseline!r}.")
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1. Got {minimum}.")
    if eps < 0 or clamp < 0:
        raise ValueError(f"eps and clamp must be at least 0. Got eps={eps}, clamp={clamp}.")
