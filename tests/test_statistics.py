"""Paired intervals, tests and their power: against scipy, printed tables and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from diffrl.statistics import (
    clustered_estimate,
    detectable,
    estimate_of_sums,
    holm,
    mean_estimate,
    paired_difference,
    pairs_needed,
    power_of,
    sd_interval,
)


@pytest.mark.parametrize("n", [2, 7, 31])
def test_paired_difference_is_scipys(n):
    generator = np.random.default_rng(n)
    common = generator.normal(0.7, 0.2, n)
    first, second = common + generator.normal(0, 0.05, n), common + generator.normal(0.03, 0.05, n)
    found, oracle = paired_difference(second.tolist(), first.tolist()), stats.ttest_rel(second, first)
    interval = oracle.confidence_interval(0.95)
    assert (found.n, found.mean) == (n, pytest.approx((second - first).mean()))
    assert (found.p, found.low, found.high) == pytest.approx((oracle.pvalue, interval.low, interval.high), rel=1e-9)
    assert found.half_width == pytest.approx((interval.high - interval.low) / 2)
    assert found.resolved == (oracle.pvalue < 0.05)


def test_a_single_pair_and_equal_differences():
    one = paired_difference([0.7], [0.5])
    assert (one.n, one.mean, one.low, one.p, one.half_width) == (1, pytest.approx(0.2), None, None, None)
    assert not one.resolved
    same, shifted = paired_difference([0.25, 0.5], [0.25, 0.5]), paired_difference([0.75, 1.0], [0.25, 0.5])
    assert (same.p, same.resolved, shifted.p, shifted.resolved) == (1.0, False, 0.0, True)
    for second, first in (([0.1, 0.2], [0.1]), ([], [])):
        with pytest.raises(ValueError):
            paired_difference(second, first)


@pytest.mark.parametrize(("effect", "pairs"), [(0.5, 34), (0.8, 15)])
def test_pairs_needed_are_those_of_cohens_tables(effect, pairs):
    """Medium and large effects; power .8, level .05, two-sided, as G*Power prints them too."""
    assert pairs_needed(effect, 1.0) == pairs == pairs_needed(effect * 0.03, 0.03)
    assert power_of(pairs, effect, 1.0) >= 0.8 > power_of(pairs - 1, effect, 1.0)


@pytest.mark.parametrize("n", [2, 17])
def test_detectable_differences_are_found_in_80_of_100_simulated_studies(n):
    generator, studies, sd = np.random.default_rng(n), 20_000, 0.03
    differences = generator.normal(detectable(n, sd), sd, (studies, n))
    found = stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / studies))


def test_power_without_a_difference_is_the_level():
    assert power_of(5, 0.0, 1.0) == pytest.approx(0.05)
    assert detectable(7, 0.0) == 0.0 and pairs_needed(0.01, 0.0) == 2
    with pytest.raises(ValueError, match="more than"):
        pairs_needed(1e-6, 1.0)


def test_holm():
    """The example of Holm's procedure by hand: 3 x .01, 2 x .02, then the greater of that and .04."""
    assert holm([0.02, 0.01, 0.04]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([]) == []


def test_interval_of_a_standard_deviation_is_that_of_chi_square():
    low, high = sd_interval(2.0, 5)
    assert (low, high) == pytest.approx([2.0 * math.sqrt(4 / stats.chi2.ppf(p, 4)) for p in (0.975, 0.025)])


def test_clusters_of_one_size_are_their_means():
    generator = np.random.default_rng(3)
    values = generator.normal(0, 1, (9, 4)) + generator.normal(0.4, 0.5, (9, 1))
    clusters = np.arange(9)[:, None].repeat(4, axis=1)
    order = generator.permutation(36)
    found = clustered_estimate(values.ravel()[order].tolist(), clusters.ravel()[order].tolist())
    oracle = stats.ttest_1samp(values.mean(axis=1), 0)
    interval = oracle.confidence_interval(0.95)
    assert (found.n, found.mean, found.p) == (9, pytest.approx(values.mean()), pytest.approx(oracle.pvalue))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    alone = clustered_estimate([0.1, 0.5, 0.3], ["a", "b", "c"])
    assert (alone.n, alone.mean, alone.p) == (3, pytest.approx(0.3), pytest.approx(mean_estimate([0.1, 0.5, 0.3]).p))
    assert clustered_estimate([0.1, 0.5], ["a", "a"]).low is None


def test_clustered_intervals_hold_the_truth_where_plain_ones_are_too_narrow():
    """Clusters of 1 to 5 values that go together."""
    generator = np.random.default_rng(8)
    sizes = [1, 2, 3, 4, 5] * 6
    clusters = [place for place, size in enumerate(sizes) for _ in range(size)]
    held, plain = 0, 0
    for _ in range(1000):
        shared = generator.normal(0, 0.3, len(sizes))
        values = (0.1 + shared[clusters] + generator.normal(0, 0.1, len(clusters))).tolist()
        wide, narrow = clustered_estimate(values, clusters), mean_estimate(values)
        held += wide.low <= 0.1 <= wide.high
        plain += narrow.low <= 0.1 <= narrow.high
    assert held / 1000 > 0.92
    assert plain / 1000 < 0.80


def test_sums_of_clusters_say_what_their_values_say():
    generator = np.random.default_rng(4)
    clusters = generator.integers(0, 7, 40)
    values = generator.normal(0, 1, 40) + clusters / 5
    known = sorted(set(clusters.tolist()))
    sums, counts = zip(*((values[clusters == one].sum(), (clusters == one).sum()) for one in known), strict=True)
    of_values, of_sums = clustered_estimate(values.tolist(), clusters.tolist()), estimate_of_sums(sums, counts)
    for name in ("n", "mean", "sd", "low", "high", "p", "error"):
        assert getattr(of_sums, name) == pytest.approx(getattr(of_values, name), rel=1e-9), name
    assert estimate_of_sums([3.0], [2]).error is None
