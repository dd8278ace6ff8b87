"""What a run takes to a score: monotone curves against their definition, and how often the interval holds the truth."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from diffrl.studies.compare.curves import Point, cost_of_run, cost_to, crossing, mean_curve, monotone


def curve(*scores: float, iterations: tuple[int, ...] | None = None) -> tuple[Point, ...]:
    """A point every iteration, 100 evaluations and 7 seconds each."""
    return tuple(
        Point(i, 100.0 * i, 7.0 * i, score) for i, score in zip(iterations or range(len(scores)), scores, strict=True)
    )


@pytest.mark.parametrize("seed", range(3))
def test_monotone_scores_are_the_greatest_of_least_means(seed):
    """The min-max formula: max over starts s <= i of min over ends e >= i of the mean of s..e."""
    scores = np.random.default_rng(seed).normal(0, 1, 11) + np.linspace(0, 2, 11)
    oracle = [max(min(scores[s : e + 1].mean() for e in range(i, 11)) for s in range(i + 1)) for i in range(11)]
    found = monotone(curve(*scores))
    assert found == pytest.approx(oracle)
    assert all(after >= before for before, after in pairwise(found))


def test_crossings_by_hand():
    assert crossing([0, 10, 30], [0.2, 0.4, 0.8], 0.6) == pytest.approx(20)
    assert crossing([5, 10], [0.2, 0.4], 0.1) == 5 == crossing([5, 10], [0.2, 0.4], 0.2)
    assert crossing([0, 10, 20, 30], [0.2, 0.5, 0.5, 0.8], 0.5) == 10
    assert crossing([0, 10], [0.2, 0.4], 0.41) is None


def test_a_lucky_evaluation_and_a_lost_score_do_not_count():
    lucky = curve(0.1, 0.7, 0.2, 0.3, 0.9)  # 0.7, 0.2 and 0.3 are 0.4 together
    assert cost_of_run(lucky, 0.65, "evaluations") == pytest.approx(350)
    assert cost_of_run(curve(0.1, 0.7, 0.3, 0.2), 0.5, "evaluations") is None
    assert cost_of_run(lucky, 0.65, "seconds") == pytest.approx(24.5)


def test_every_seed_has_to_get_there():
    first, second = curve(0.0, 0.4, 0.8), curve(0.0, 0.2, 0.4)
    found = cost_to([first, second], 0.5, "evaluations")
    assert (found.cost, found.low, found.high, found.reached, found.runs) == (None, None, None, 1, 2)
    one = cost_to([first], 0.6, "evaluations")
    assert (one.cost, one.low, one.high, one.reached) == (pytest.approx(150), None, None, 1)


def test_mean_curve_joins_evaluations_of_other_iterations():
    costs, scores = mean_curve([curve(0.0, 0.4, 0.8), curve(0.2, 0.6, iterations=(0, 2))], "evaluations")
    assert costs == pytest.approx([0, 100, 200])
    assert [one.mean for one in scores] == pytest.approx([0.1, 0.4, 0.7])


def test_interval_holds_the_truth_about_95_times_in_100():
    """Seeds rise at speeds of their own, evaluations are noisy, and on average 0.5 is reached at a known cost."""
    generator, studies, seeds, covered, costs = np.random.default_rng(2), 600, 5, 0, []
    times = np.arange(9)
    for _ in range(studies):
        slopes = generator.normal(0.1, 0.012, seeds)
        scores = 0.1 + slopes[:, None] * times + generator.normal(0, 0.012, (seeds, 9))
        found = cost_to([curve(*row) for row in scores], 0.5, "evaluations")
        if found.cost is None:
            continue
        costs.append(found.cost)
        covered += found.low <= 400 and (found.high is None or found.high >= 400)
    assert len(costs) > 0.95 * studies
    assert covered / len(costs) == pytest.approx(0.95, abs=4 * math.sqrt(0.05 * 0.95 / studies))
    assert np.mean(costs) == pytest.approx(400, rel=0.02)
