"""Every pair of configurations: the difference, what was found, and what so many seeds cannot see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from diffrl.errors import ConfigError
from diffrl.statistics import ALPHA, POWER, Estimate, detectable, holm, paired_difference, pairs_needed
from diffrl.studies.compare.results import Arm, Comparison

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Pair:
    """Two configurations, run by run of the same seed."""

    first: str  # label of the one that is subtracted
    second: str  # label of the one that it is subtracted from
    difference: Estimate  # of their final numbers, second less first
    p_holm: float | None  # its p-value among all pairs of the comparison, by Holm; None for one seed

    @property
    def unseen(self) -> float | None:
        """Return the least difference that so many seeds resolve, see `statistics.detectable`; None for one seed."""
        return None if self.difference.sd is None else detectable(self.difference.n, self.difference.sd)

    @property
    def finding(self) -> str:
        """Say in words what was seen: "higher" or "lower" at Holm's 5 %, else that nothing was resolved."""
        if self.p_holm is None or self.difference.p is None or self.unseen is None:
            return "one seed tells nothing"
        if self.p_holm < ALPHA:
            return "higher" if self.difference.mean > 0 else "lower"
        if self.difference.p < ALPHA:
            return "not resolved among so many pairs"
        return f"not resolved below {self.unseen:.3f}"


def pairs_of(comparison: Comparison, chosen: Sequence[tuple[str, str]] | None = None) -> list[Pair]:
    """Return each later configuration less each earlier one, over the seeds that both have finished.

    Args:
        comparison: as `collect` read it.
        chosen: labels (first, second) of the pairs that were planned, second less first, in place of all; p-values are
            adjusted for these alone, so they must have been chosen before the numbers were seen.

    Returns:
        None of those without a seed in common; [] where runs of one seed are no pairs.
    """
    if not comparison.paired:
        return []
    differences, arms = [], {arm.label: arm for arm in comparison.arms}
    asked = combinations(comparison.arms, 2) if chosen is None else [(arms[a], arms[b]) for a, b in chosen]
    for first, second in asked:
        difference = difference_of(comparison, second, first)
        if difference is not None:
            differences.append((first.label, second.label, difference))
    known = [difference.p for _, _, difference in differences if difference.p is not None]
    adjusted = iter(holm(known))
    return [
        Pair(first, second, difference, None if difference.p is None else next(adjusted))
        for first, second, difference in differences
    ]


def difference_of(comparison: Comparison, second: Arm, first: Arm) -> Estimate | None:
    """Subtract an arm's final numbers from another's, over the seeds that both have; None if they share none."""
    scores = [{run.number: comparison.score(arm, run) for run in arm.runs} for arm in (second, first)]
    shared = [number for number in scores[0] if number in scores[1]]
    return paired_difference([scores[0][i] for i in shared], [scores[1][i] for i in shared]) if shared else None


def power_line(comparison: Comparison) -> str:
    """Return what the comparison cannot see, in a sentence; of several pairs the one that sees least counts."""
    if not comparison.paired:
        return "Power: unknown, for runs of one seed are no pairs."
    pairs = pairs_of(comparison)
    worst = max(pairs, key=lambda pair: math.inf if pair.unseen is None else pair.unseen, default=None)
    if worst is None:
        return "Power: nothing is compared, for no two configurations have finished a seed."
    if worst.unseen is None or worst.difference.sd is None:
        return f"Power: with 1 seed no difference is resolved, however large ({worst.second} less {worst.first})."
    return (
        f"Power: with {worst.difference.n} seeds, differences below {worst.unseen:.3f} are not resolved (paired "
        f"t-test, power {POWER:g}, level {ALPHA:g}, sd of paired differences {worst.difference.sd:.3f}: "
        f"{worst.second} less {worst.first})."
    )


def measured_sd(comparison: Comparison) -> tuple[float, int] | None:
    """Return the standard deviation of paired differences, of the pair with the largest, and its seeds.

    Returns:
        None where no pair has two seeds that differ.
    """
    known = [(pair.difference.sd, pair.difference.n) for pair in pairs_of(comparison) if pair.difference.sd]
    return max(known, default=None)


def seeds_to_detect(difference: float, sd: float) -> int:
    """Return how many seeds resolve a difference: paired t-test, power 0.8, level 0.05.

    Raises:
        ConfigError: one of them is not above 0, or it takes more seeds than a comparison may have.
    """
    for option, value in (("--detect", difference), ("--sd", sd)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{option} must be above 0, in the unit of the metric. Got {value:g}. Raise it.")
    if detectable(MOST_SEEDS, sd) > difference:
        raise ConfigError(
            f"--detect {difference:g} takes more than {MOST_SEEDS} seeds if paired differences have an sd of {sd:g}. "
            f"Write --detect {detectable(MOST_SEEDS, sd):.2g} or more."
        )
    return pairs_needed(difference, sd)
