"""What paired differences say, and what so many pairs can say at all: Student's t, numbers in and out.

Every interval of a comparison, in tables, figures, scripts and the gallery, comes from here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
"""Coverage of every interval."""

ALPHA, POWER = 0.05, 0.8
"""Of a planned test: how often a difference is claimed where there is none, and found where there is one."""

MOST_PAIRS = 100_000
"""More pairs than anybody trains: where the search for a number of pairs ends."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval.

    Args:
        n: values.
        mean: of them.
        sd: their sample standard deviation, divisor n - 1; None for one value, as are all that follow.
        low: the interval's lower end, mean - t(0.975, n - 1) sd / sqrt(n).
        high: its upper end.
        p: two-sided p-value of Student's test that the mean is 0.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    p: float | None

    @property
    def half_width(self) -> float | None:
        """Return half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean."""
        return None if self.sd is None else self.sd / math.sqrt(self.n)

    @property
    def resolved(self) -> bool:
        """Return whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_difference(second: Sequence[float], first: Sequence[float]) -> Estimate:
    """Return the mean of `second` less `first`, pair by pair: the paired t-test and its interval.

    Differences are taken for independent draws from a normal distribution; the pairs' own values may be anything.

    Args:
        second: (n,) values, in the order of the pairs.
        first: (n,) values.

    Raises:
        ValueError: there are no values, or not as many of one as of the other.
    """
    return mean_estimate([after - before for after, before in zip(second, first, strict=True)])


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values with Student's interval and test.

    Values that are all equal have an interval of no width; p is then 1 at a mean of 0, else 0.

    Args:
        values: (n,) finite.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    n, mean = len(values), statistics.fmean(values)
    return _student(n, mean, None if n == 1 else statistics.stdev(values))


def clustered_estimate(values: Sequence[float], clusters: Sequence[Hashable]) -> Estimate:
    """Return the mean of values in clusters, such as several images of a prompt, with an interval over clusters.

    Values of one cluster may go together in any way; clusters are taken for independent. The standard error is the
    cluster-robust one with the correction G / (G - 1) (Liang and Zeger, Biometrika 73, 1986), and Student's t has
    G - 1 degrees of freedom. With as many values in each cluster this is `mean_estimate` of the clusters' means.

    Args:
        values: (n,) finite.
        clusters: (n,) what each value belongs to.

    Returns:
        The mean of all values; `n` is the number G of clusters, and `sd` belongs to it.

    Raises:
        ValueError: there are no values, or not as many of one as of the other.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    mean = statistics.fmean(values)
    sums: dict[Hashable, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    return _clustered(mean, list(sums.values()), len(values))


def estimate_of_sums(sums: Sequence[float], counts: Sequence[float]) -> Estimate:
    """Return the same of what is known of each cluster: the sum of its values, and their number, above 0."""
    total = math.fsum(counts)
    mean = math.fsum(sums) / total
    return _clustered(mean, [one - count * mean for one, count in zip(sums, counts, strict=True)], total)


def _clustered(mean: float, residuals: Sequence[float], total: float) -> Estimate:
    n = len(residuals)
    if n == 1:
        return _student(1, mean, None)
    return _student(n, mean, n / total * math.sqrt(math.fsum(one * one for one in residuals) / (n - 1)))


def _student(n: int, mean: float, sd: float | None) -> Estimate:
    """Make interval and test of a mean of n values with a sample standard deviation."""
    if sd is None:
        return Estimate(n, mean, None, None, None, None)
    from scipy.special import stdtr, stdtrit  # a page that shows an interval is not to wait for all of scipy.stats

    error = sd / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error > 0 else float(mean == 0)
    return Estimate(n, mean, sd, mean - half, mean + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's p-values of many tests: below 0.05 they claim a false difference in at most 5 % of studies.

    S. Holm, Scandinavian Journal of Statistics 6 (1979).

    Args:
        p_values: (m,) of single tests.

    Returns:
        (m,) in the same order.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = most
    return adjusted


def power_of(n: int, difference: float, sd: float) -> float:
    """Return how probable a two-sided paired t-test of level 0.05 finds a difference; exact, by the noncentral t.

    Args:
        n: pairs, at least 2.
        difference: of the means, in the score's unit.
        sd: of the paired differences, above 0.
    """
    from scipy import stats

    shift, quantile = abs(difference) / sd * math.sqrt(n), float(stats.t.ppf(1 - ALPHA / 2, n - 1))
    right, wrong = (float(stats.nct.sf(quantile, n - 1, sign * shift)) for sign in (1, -1))  # its cdf is NaN far out
    return right + wrong


def detectable(n: int, sd: float) -> float:
    """Return the least difference that n pairs find with power 0.8; in the unit of sd, 0 if sd is 0.

    Args:
        n: pairs, at least 2.
        sd: of the paired differences.
    """
    return _detectable_shift(n) * sd / math.sqrt(n)


@cache
def _detectable_shift(n: int) -> float:
    """Return the noncentrality at which power is reached, in units of sd / sqrt(n)."""
    low, high = 0.0, 1.0
    while power_of(n, high / math.sqrt(n), 1.0) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power_of(n, middle / math.sqrt(n), 1.0) < POWER else (low, middle)
    return high


def pairs_needed(difference: float, sd: float) -> int:
    """Return the least number of pairs, at least 2, that finds a difference with power 0.8.

    Args:
        difference: above 0, in the unit of sd.
        sd: of the paired differences.

    Raises:
        ValueError: it would take more than `MOST_PAIRS`.
    """
    if detectable(MOST_PAIRS, sd) > difference:
        raise ValueError(f"a difference of {difference:g} at sd {sd:g} takes more than {MOST_PAIRS} pairs")
    low, high = 1, 2  # high is enough, low is not
    while detectable(high, sd) > difference:
        low, high = high, min(2 * high, MOST_PAIRS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable(middle, sd) <= difference else (middle, high)
    return high


def sd_interval(sd: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a standard deviation of normal values, by chi-squared.

    Args:
        sd: sample standard deviation.
        n: values, at least 2.
    """
    from scipy import stats

    low, high = (float(stats.chi2.ppf(share, n - 1)) for share in ((1 + LEVEL) / 2, (1 - LEVEL) / 2))
    return sd * math.sqrt((n - 1) / low), sd * math.sqrt((n - 1) / high)
