"""How well a cheap proxy reward ranks candidates, compared with the true reward.

Notation: N candidates, `proxy` and `true` (N,) in any unit, more is better. A pair of rewards is *usable* where both
are finite; all else is left out, since a failed scoring says nothing about the ranking. Computed in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class RankingFidelity(NamedTuple):
    """Agreement of two rankings; NaN, never 0 or 1, where the candidates cannot tell.

    Args:
        tau: Kendall's tau-b, in [-1, 1].
        rho: Spearman's rho with average ranks, in [-1, 1].
        top_match: share of the proxy's k best whose true reward is at least the k-th best true reward, in [0, 1].
        bottom_match: share of the proxy's k worst whose true reward is at most the k-th worst true reward, in [0, 1].
        mean_rank: mean true rank of the proxy's k best, in [0, 1]: 0 is the best candidate and 1 the worst, so a
            perfect proxy has (k - 1) / (2 (N - 1)) and a useless one 0.5. Ties have their average rank.
    """

    tau: float
    rho: float
    top_match: float
    bottom_match: float
    mean_rank: float


def ranking_fidelity(proxy: Tensor, true: Tensor, k: int) -> RankingFidelity:
    """Rank correlations of two rewards, and how many of the extremes the proxy finds.

        tau = (C - D) / sqrt((P - T_proxy) (P - T_true)),   rho = Pearson correlation of the average ranks

    with C concordant and D discordant pairs of all P, and T pairs tied in one reward: Kendall, "The treatment of ties
    in ranking problems", 1945. Ties of the proxy at the edge of its k best are broken by the lower index, as the
    selection does (at the edge of its k worst likewise: the higher index is worse); a candidate whose true reward
    equals the k-th best counts as a match, so ties of the true reward never cost one.

    Args:
        proxy: (N,) reward by the cheap way.
        true: (N,) reward by the full way.
        k: how many are the best and the worst, at least 1.

    Returns:
        RankingFidelity of Python floats. With U usable pairs: all are NaN where U < 2, the last three where U < k; tau
        and rho are NaN where one of the rewards is the same everywhere.

    Raises:
        ValueError: `proxy` and `true` are not both (N,), or `k` is below 1.
    """
    _check(proxy, true=true)
    if k < 1:
        raise ValueError(f"k must be at least 1. Got {k}.")
    usable = proxy.isfinite() & true.isfinite()
    proxy, true = proxy[usable].double(), true[usable].double()
    count = len(proxy)
    if count < 2:
        return RankingFidelity(*[math.nan] * 5)
    above_proxy, above_true = _signs(proxy), _signs(true)
    rank_proxy, rank_true = _centred_rank(above_proxy), _centred_rank(above_true)
    tau, rho = _cosine(above_proxy, above_true), _cosine(rank_proxy, rank_true)
    if count < k:
        return RankingFidelity(tau, rho, math.nan, math.nan, math.nan)
    order = proxy.argsort(descending=True, stable=True)
    top, bottom, level = order[:k], order[count - k :], true.sort().values
    return RankingFidelity(
        tau,
        rho,
        top_match=float((true[top] >= level[count - k]).double().mean()),
        bottom_match=float((true[bottom] <= level[k - 1]).double().mean()),
        mean_rank=float(rank_true[top].mean() / (count - 1)) + 0.5,
    )


def pair_agreement(proxy: Tensor, true: Tensor, groups: Tensor, chosen: Tensor) -> tuple[int, int, int]:
    """Return counts of pairs that two rewards order alike, over the pairs of a group with at least one chosen member.

    For the audit: when only a random few of the rest are scored in full, the pairs that they are in are a fair sample,
    where those between selected extremes alone are not.

    Args:
        proxy: (N,) reward by the cheap way.
        true: (N,) reward by the full way.
        groups: (N,) integer group ids; pairs across groups do not count.
        chosen: (N,) bool.

    Returns:
        Numbers of concordant, discordant and tied pairs; a pair is tied where either reward is equal.

    Raises:
        ValueError: the four are not all (N,), `groups` is not integer, or `chosen` is not bool.
    """
    _check(proxy, true=true, groups=groups, chosen=chosen)
    if groups.is_floating_point() or groups.dtype == torch.bool or chosen.dtype != torch.bool:
        raise ValueError(f"groups must be integer and chosen bool. Got {groups.dtype} and {chosen.dtype}.")
    usable = proxy.isfinite() & true.isfinite()
    concordant = discordant = tied = 0
    for group in sorted(set(groups[usable & chosen].tolist())):
        members = usable & (groups == group)
        agreement = _signs(proxy[members].double()) * _signs(true[members].double())
        counts = (chosen[members].unsqueeze(1) | chosen[members]).triu(diagonal=1)
        concordant += int((agreement[counts] > 0).sum())
        discordant += int((agreement[counts] < 0).sum())
        tied += int((agreement[counts] == 0).sum())
    return concordant, discordant, tied


def _signs(values: Tensor) -> Tensor:
    """Return (N,) -> (N, N): 1 where the row's value is above the column's, -1 where below, 0 where equal."""
    return torch.sign(values.unsqueeze(1) - values)


def _centred_rank(signs: Tensor) -> Tensor:
    """Return (N, N) -> (N,): average rank from the best, less the mean of all ranks: half of (above) - (below)."""
    return -0.5 * signs.sum(dim=1)


def _cosine(a: Tensor, b: Tensor) -> float:
    """Correlate two tensors of mean 0; NaN where one is 0. The sums are of halves, so they are exact."""
    scale = float(a.square().sum()) * float(b.square().sum())
    return float((a * b).sum()) / math.sqrt(scale) if scale > 0.0 else math.nan


def _check(proxy: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if proxy.ndim != 1 or tensor.shape != proxy.shape:
            raise ValueError(f"proxy and {name} must both be (N,). Got {tuple(proxy.shape)} and {tuple(tensor.shape)}.")
