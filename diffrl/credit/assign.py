"""Rewards of samples to advantages of edges."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from diffrl.functional.advantages import group_advantage
from diffrl.records import Credit


def outcome_credit(
    total: Tensor,
    groups: Tensor,
    ok: Tensor,
    mine: slice,
    edge_sample: Tensor,
    *,
    baseline: Literal["mean", "median"] = "mean",
    std: Literal["group", "batch"] = "group",
    clamp: float = 5.0,
    minimum: int = 2,
) -> Credit:
    """Every edge of a sample gets the sample's group advantage (GRPO's outcome reward; Flow-GRPO, arXiv 2505.05470).

    Args:
        total: (S_all,) rewards of the whole iteration, of all ranks.
        groups: (S_all,) int64 group ids, unique over the iteration.
        ok: (S_all,) False for samples to leave out.
        mine: the rows of `total` that are this rank's samples.
        edge_sample: (E,) int64 row of each edge's sample within `mine`.
        baseline: what a reward is compared with.
        std: what the difference is divided by.
        clamp: bound on the size of an advantage.
        minimum: samples a group needs to be used.
    """
    result = group_advantage(total, groups, ok=ok, baseline=baseline, std=std, clamp=clamp, minimum=minimum)
    own = result.advantage[mine]
    return Credit(own.to(edge_sample.device)[edge_sample], own, result.zero_spread, result.dropped)
