"""Steps at which a path turns towards what its sample is worth in the end, and the long-term reward that they earn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diffrl.functional.groups import layout
from diffrl.functional.tree_values import check_forest, leaf_mask, paths, root_of, step_rewards


class TurningPoints(NamedTuple):
    """Rewards of steps, and which of them look further ahead than the step.

    Numbers count pairs of a leaf and a step of its path, since a step that several leaves share may be a turning point
    for some of them only.

    Args:
        rewards: (N,) float32 of the step that ends in each node; NaN at roots, where a value is missing, and where no
            leaf below could be scored.
        replaced: (N,) bool, True where the long-term reward of at least one leaf entered.
        positive: turning points found whose long-term reward is above 0, before balancing.
        negative: those below 0.
        dropped: those of either sign that balancing left out.
    """

    rewards: Tensor
    replaced: Tensor
    positive: int
    negative: int
    dropped: int


class Turns(NamedTuple):
    """The turning points found, M pairs of a step and a leaf, in ascending order of the node and then of the leaf.

    Args:
        node: (M,) int64 node in which the step ends.
        leaf: (M,) int64 leaf on whose path it turns.
        kept: (M,) bool, False where balancing left it out.
    """

    node: Tensor
    leaf: Tensor
    kept: Tensor


def turning_point_rewards(
    values: Tensor,
    leaf_reward: Tensor,
    parent: Tensor,
    constraint: bool = True,
    balance: bool = True,
    leaf_weight: Tensor | None = None,
    group: Tensor | None = None,
) -> TurningPoints:
    """Step rewards, but at turning points the reward from there to the end.

    For a step u -> c of the path to a leaf with reward R, of which the path gains G = R - V(root) in all:

        r_c = V(c) - V(u)
        turns = sign(r_c) = sign(G) != 0   and   sign(r_u) = -sign(G), for the first step left out
                and, with constraint,   sign(r_c) = sign(R - V(c))
        reward = R - V(u) if it turns, else r_c

    TP-GRPO, arXiv 2602.06422, for chains with V the reward of the deterministic completion. The constraint sees to it
    that the long-term reward has the sign of r_c and is larger; without it, it may be smaller, 0, or of the other sign.
    A step that several leaves share gets the weighted mean, over those leaves, of what it earns on each path.

    With fused values a step without siblings earns 0, so neither it nor the step after it turns; nor does, with the
    constraint, a step that leads to one leaf alone.

    Balancing (the paper's appendix D): each group keeps as many positive as negative long-term rewards, those largest
    in size; a step that is dropped keeps r_c on that path. Of equal sizes the earlier node's is kept, and at one node
    the earlier leaf's. Long-term rewards of 0 have no side: they are neither dropped nor counted.

    Args:
        values: (N,) worth of each node, NaN where unknown; at leaves their reward. In the unit of `leaf_reward`.
        leaf_reward: (N,) at leaves, NaN at inner nodes and where scoring failed; such leaves are left out.
        parent: (N,) int64, parents before children, -1 at roots.
        constraint: ask that the path goes on, after the step, in the step's direction.
        balance: keep as many turns for the better as for the worse.
        leaf_weight: (N,) positive at leaves, as for `tree_values.fuse`; None means that all weigh the same.
        group: (N,) integer ids of the trees that are balanced together; None means that all are.

    Returns:
        TurningPoints.

    Raises:
        ValueError: shapes differ, or `parent` is no forest in order.
    """
    return find_turning_points(values, leaf_reward, parent, constraint, balance, leaf_weight, group)[0]


def find_turning_points(
    values: Tensor,
    leaf_reward: Tensor,
    parent: Tensor,
    constraint: bool = True,
    balance: bool = True,
    leaf_weight: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[TurningPoints, Turns]:
    """Return `turning_point_rewards`, and on which paths the steps turn."""
    check_forest(parent, values=values, leaf_reward=leaf_reward, leaf_weight=leaf_weight, group=group)
    value, step = values.double(), step_rewards(values, parent).double()
    leaf, node = paths(parent, torch.nonzero(leaf_mask(parent) & leaf_reward.isfinite()).flatten())
    origin = parent[node]
    end = leaf_reward.double()[leaf]
    gain = end - value[root_of(parent)[leaf]]
    first = parent[origin] < 0
    turns = _agree(step[node], gain) & (first | _agree(-step[origin], gain))
    if constraint:
        turns &= _agree(step[node], end - value[node])

    long_term = (end - value[origin])[turns]
    group_of = torch.zeros_like(leaf) if group is None else group[leaf]
    kept = _balanced(long_term, group_of[turns]) if balance else torch.ones_like(long_term, dtype=torch.bool)
    replaced = turns.clone()
    replaced[turns] = kept

    weight = torch.ones_like(end) if leaf_weight is None else leaf_weight.double()[leaf]
    extra = (end - value[origin] - step[node]).where(replaced, 0.0)
    zeros = torch.zeros_like(value)
    below = zeros.index_add(0, node, weight)  # 0 where no leaf could be scored: 0 / 0 is NaN there
    rewards = step + zeros.index_add(0, node, weight * extra) / below
    positive, negative = int((long_term > 0).sum()), int((long_term < 0).sum())
    here = torch.zeros_like(parent, dtype=torch.bool)
    here[node[replaced]] = True
    points = TurningPoints(rewards.float(), here, positive, negative, int((~kept).sum()))
    return points, Turns(node[turns], leaf[turns], kept)


def _agree(a: Tensor, b: Tensor) -> Tensor:
    """Return where both are above 0 or both below; False for zeros and NaNs."""
    return ((a > 0) & (b > 0)) | ((a < 0) & (b < 0))


def _balanced(long_term: Tensor, group: Tensor) -> Tensor:
    """Return (M,) bool, False where one of M long-term rewards is dropped; of equal ones the later is."""
    if not len(long_term):
        return torch.ones_like(long_term, dtype=torch.bool)
    _, row = torch.unique(group, return_inverse=True)
    order = torch.argsort(long_term.abs(), descending=True, stable=True)
    rank = torch.empty_like(row)
    rank[order] = layout((3 * row + long_term.sign().long() + 1)[order])[1]
    positive, negative = (torch.bincount(row[side], minlength=len(row)) for side in (long_term > 0, long_term < 0))
    return (long_term == 0) | (rank < torch.minimum(positive, negative)[row])
