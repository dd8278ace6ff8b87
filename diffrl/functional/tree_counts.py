"""Counting the nodes and edges of a tree: how much there will be to compute, before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def alive_per_level(levels: Sequence[int], branching: Mapping[int, int]) -> list[int]:
    """Return nodes of one whole tree that go through the network at each level of the grid.

    Args:
        levels: starts of the grid's steps, as indices of the full grid.
        branching: stochastic step -> children.
    """
    alive, counts = 1, []
    for level in levels:
        counts.append(alive)
        alive *= branching.get(level, 1)
    return counts


def forwards_per_tree(levels: Sequence[int], branching: Mapping[int, int]) -> int:
    """Return network evaluations of one whole tree.

    On the full grid, with K children at 0-based splits b_1 < ... < b_m of T steps, that is
    (b_1 + 1) + sum_j K^j (b_(j+1) - b_j) + K^m (T - 1 - b_m).
    """
    return sum(alive_per_level(levels, branching))


def ends_per_tree(branching: Mapping[int, int]) -> dict[int, int]:
    """Return stochastic step -> nodes of one whole tree in which it ends: its edges."""
    alive, ends = 1, {}
    for step in sorted(branching):
        alive *= branching[step]
        ends[step] = alive
    return ends


def origins_per_tree(branching: Mapping[int, int]) -> dict[int, int]:
    """Return stochastic step -> nodes of one whole tree that it starts from: what the update asks the network for."""
    return {step: count // branching[step] for step, count in ends_per_tree(branching).items()}


def trained_nodes(keep: int | float | None, nodes: int) -> int:
    """Return how many of a prompt's nodes train.

    Args:
        keep: so many, or all where there are fewer; a share of them in (0, 1), rounded up; None = all.
        nodes: of the prompt.
    """
    if keep is None:
        return nodes
    return min(keep, nodes) if isinstance(keep, int) else math.ceil(round(keep * nodes, 9))  # .07 * 100 is above 7
