"""Which denoising steps are stochastic, and so have a density and are trained; and coarser grids that keep them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappush, heapreplace
from itertools import pairwise
from typing import Literal


def stochastic_steps(
    kind: Literal["all", "splits", "window", "none"],
    steps: int,
    iteration: int,
    splits: Sequence[int] = (),
    start: int = 0,
    size: int | None = None,
    slide_every: int | None = None,
) -> tuple[int, ...]:
    """Return an iteration's stochastic steps, ascending. The last step never is one: its noise would be visible.

    Split steps always are stochastic. A sliding window (MixGRPO, arXiv 2507.21802; BranchGRPO-Mix, arXiv 2509.06040,
    whose published code slides over the denoising index instead) moves on by one step every `slide_every` training
    iterations. After the last place where it fits it goes back to step 0; it never wraps in two, so its size is
    constant.

    Args:
        kind: "all" steps but the last, the "splits" alone, the splits and a "window", or "none".
        steps: T denoising steps.
        iteration: training iteration, from 0.
        splits: steps at which trees split.
        start: first step of the window in iteration 0.
        size: number of steps in the window.
        slide_every: iterations after which the window moves; None = it stays.

    Returns:
        Indices in [0, T - 2], each one the step from sigma[i] to sigma[i + 1].

    Raises:
        ValueError: the window or a split does not fit before the last step, or there are splits and kind is "none".
    """
    if any(not 0 <= split <= steps - 2 for split in splits):
        raise ValueError(f"Splits must lie within steps 0 to {steps - 2}. Got {list(splits)}.")
    if kind == "none" and splits:
        raise ValueError(f"Splits are stochastic steps. Got kind='none' and splits {list(splits)}.")
    if kind == "all":
        return tuple(range(steps - 1))
    if kind in ("splits", "none"):
        return tuple(sorted(splits))
    if kind != "window" or size is None:
        raise ValueError(f"stochastic steps are all, splits, none or a window with a size. Got {kind!r}, size={size}.")
    places = steps - size  # starts 0 ... steps - 1 - size, all before the last step
    if size < 1 or not 0 <= start < places:
        raise ValueError(f"A window must lie within steps 0 to {steps - 2}. Got start={start}, size={size}.")
    moves = 0 if slide_every is None else iteration // slide_every
    first = (start + moves) % places
    return tuple(sorted({*splits, *range(first, first + size)}))


def least_steps(stochastic: Collection[int], steps: int) -> int:
    """Return steps of the coarsest grid of a full grid of `steps` that holds the stochastic ones unchanged."""
    return len({0, steps, *stochastic, *(step + 1 for step in stochastic)}) - 1


def coarse_levels(full: int, stochastic: Collection[int], steps: int) -> tuple[int, ...]:
    """Return a coarser grid that holds every stochastic step unchanged, so that noise enters at the same place in both.

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
    # A heap of negative widths: the widest gap comes first, of equal ones the first.
    gaps = [(start - end, start) for start, end in pairwise(sorted(levels))]
    heapify(gaps)
    while len(levels) <= steps:
        width, start = -gaps[0][0], gaps[0][1]
        levels.add(start + width // 2)
        heapreplace(gaps, (-(width // 2), start))
        heappush(gaps, (width // 2 - width, start + width // 2))
    return tuple(sorted(levels))
