"""The arithmetic of trees and grids: how much there will be to compute, before anything is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappush, heapreplace
from itertools import pairwise


def alive_per_level(levels: Sequence[int], branching: Mapping[int, int]) -> list[int]:
    """Nodes of one whole tree that go through the network at each level of the grid.

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
    """Network evaluations of one whole tree.

    On the full grid, with K children at 0-based splits b_1 < ... < b_m of T steps, that is
    (b_1 + 1) + sum_j K^j (b_(j+1) - b_j) + K^m (T - 1 - b_m).
    """
    return sum(alive_per_level(levels, branching))


def ends_per_tree(branching: Mapping[int, int]) -> dict[int, int]:
    """Stochastic step -> nodes of one whole tree in which it ends: its edges."""
    alive, ends = 1, {}
    for step in sorted(branching):
        alive *= branching[step]
        ends[step] = alive
    return ends


def origins_per_tree(branching: Mapping[int, int]) -> dict[int, int]:
    """Stochastic step -> nodes of one whole tree that it starts from: what the update asks the network for."""
    return {step: count // branching[step] for step, count in ends_per_tree(branching).items()}


def least_steps(stochastic: Collection[int], steps: int) -> int:
    """Steps of the coarsest grid of a full grid of `steps` that holds the stochastic ones unchanged."""
    return len({0, steps, *stochastic, *(step + 1 for step in stochastic)}) - 1


def coarse_levels(full: int, stochastic: Collection[int], steps: int) -> tuple[int, ...]:
    """A coarser grid that holds every stochastic step unchanged, so that noise enters at the same place in both.

    Beginning with the two ends and both sides of each stochastic step, the largest gap is halved again and again; of
    equal gaps the first, where most of the picture is decided.

    Args:
        full: T, steps of the full grid.
        stochastic: stochastic steps.
        steps: of the coarse grid.

    Returns:
        steps + 1 indices of the full grid, ascending from 0 to T.

    Raises:
        ValueError: `steps` is not between what the stochastic steps need and T.
    """
    levels = {0, full, *stochastic, *(step + 1 for step in stochastic)}
    if not len(levels) - 1 <= steps <= full:
        raise ValueError(f"The coarse grid needs {len(levels) - 1} to {full} steps. Got {steps}.")
    gaps = [
        (start - end, start) for start, end in pairwise(sorted(levels))
    ]  # the widest first, of equal ones the first
    heapify(gaps)
    while len(levels) <= steps:
        width, start = -gaps[0][0], gaps[0][1]
        levels.add(start + width // 2)
        heapreplace(gaps, (-(width // 2), start))
        heappush(gaps, (width // 2 - width, start + width // 2))
    return tuple(sorted(levels))
