"""A run's curve, and what it costs to reach a score: on monotone curves, with an interval over seeds.

A single evaluation is noisy, so a raw curve reaches any score too early: the first lucky evaluation counts. Each
curve is therefore replaced by its isotonic regression, the nearest one in squares that never falls. It has no width to
choose; a lucky point is averaged with the lower ones after it; and a score that was reached and lost again is not
reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from diffrl.statistics import Estimate, mean_estimate


@dataclass(frozen=True)
class Point:
    """One held-out evaluation."""

    iteration: int  # of training, after which it was made
    evaluations: float  # network evaluations spent on training until then, priced by the comparison's table
    seconds: float  # wall seconds spent on training until then
    score: float  # the metric


@dataclass(frozen=True)
class Reached:
    """What it costs to reach a score.

    Args:
        cost: at which the mean over seeds of the monotone curves is at the score; None unless every seed got there.
        low: the 95 % interval's lower end: costs at which the interval of the mean score holds the score. None for one
            seed, or without a cost.
        high: its upper end; None besides if that lies beyond what was measured.
        reached: seeds that got there.
        runs: all.
    """

    cost: float | None
    low: float | None
    high: float | None
    reached: int
    runs: int


def monotone(curve: Sequence[Point]) -> list[float]:
    """Return the scores of a curve's isotonic regression, nondecreasing and nearest in squares.

    Args:
        curve: N points, in the order of training.

    Returns:
        (N,) scores.
    """
    return _monotone([point.score for point in curve])


def _monotone(scores: Sequence[float]) -> list[float]:
    return isotonic_regression(scores).x.tolist()


def crossing(costs: Sequence[float], scores: Sequence[float], target: float) -> float | None:
    """Return the least cost at which a nondecreasing, piecewise linear curve is at `target`; None if it never is.

    Args:
        costs: (N,) ascending.
        scores: (N,) nondecreasing.
        target: the score; at the first point or below it costs what that point does.
    """
    index = next((i for i, score in enumerate(scores) if score >= target), None)
    if index is None:
        return None
    if index == 0:
        return float(costs[0])
    share = (target - scores[index - 1]) / (scores[index] - scores[index - 1])
    return float(costs[index - 1] + share * (costs[index] - costs[index - 1]))


def cost_of_run(curve: Sequence[Point], target: float, cost: str) -> float | None:
    """Return what one run takes to a score, on its monotone curve; None if it does not get there.

    Args:
        curve: of the run.
        target: the score.
        cost: "evaluations", "seconds" or "iteration".
    """
    return crossing([getattr(point, cost) for point in curve], monotone(curve), target)


def cost_to(curves: Sequence[Sequence[Point]], target: float, cost: str) -> Reached:
    """Return what runs of several seeds take to a score.

    The interval turns that of the mean score around: it holds every cost at which the score cannot be told from the
    mean curve. So seeds that are far apart give a wide one, with an open end where the budget was too small.

    Args:
        curves: one a seed, at least one.
        target: the score.
        cost: "evaluations", "seconds" or "iteration".
    """
    reached = sum(cost_of_run(curve, target, cost) is not None for curve in curves)
    if reached < len(curves):
        return Reached(None, None, None, reached, len(curves))
    costs, estimates = mean_curve(curves, cost)
    cost_of_mean = crossing(costs, [one.mean for one in estimates], target)
    low = high = None
    if len(curves) > 1:
        low = crossing(costs, _monotone([_end(one.high) for one in estimates]), target)
        high = crossing(costs, _monotone([_end(one.low) for one in estimates]), target)
    return Reached(cost_of_mean, low, high, reached, len(curves))


def mean_curve(curves: Sequence[Sequence[Point]], cost: str) -> tuple[list[float], list[Estimate]]:
    """Return mean cost and mean score of monotone curves, after each iteration that any of them was evaluated after.

    Args:
        curves: one a seed; between its evaluations each is straight.
        cost: "evaluations", "seconds" or "iteration".

    Returns:
        (N,) costs and (N,) estimates over the seeds.
    """
    grid = sorted({point.iteration for curve in curves for point in curve})
    iterations = [[point.iteration for point in curve] for curve in curves]
    costs = [
        np.interp(grid, steps, [getattr(point, cost) for point in curve])
        for steps, curve in zip(iterations, curves, strict=True)
    ]
    scores = [np.interp(grid, steps, monotone(curve)) for steps, curve in zip(iterations, curves, strict=True)]
    return np.mean(costs, axis=0).tolist(), [mean_estimate(column) for column in np.array(scores).T.tolist()]


def _end(value: float | None) -> float:
    """Return an end of an interval of several values, which has ends."""
    assert value is not None
    return value
