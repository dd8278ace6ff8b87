"""The drawing above a comparison: every sample by its score in the baseline and in the compared column."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from diffrl.gallery.compare import Row, judgement, scores

SIZE = 300.0
"""Edge of the square that the scores fill, in units of the drawing."""
SINGLE, LARGEST, LEAST = 3.5, 24.0, 2.0
"""Radius of one sample, and of no point more or less. Areas are in proportion to the samples: where the largest point
would be too large all are smaller, down to what a finger finds."""
MARGIN = 0.07
"""Of the reach of the scores, left free at both ends of an axis: the largest point fits in."""
MOST = 1000
"""Points that are drawn; of more the first ones, as the samples were drawn."""
TICKS = 4
"""About as many numbers stand along an axis."""


@dataclass(frozen=True)
class Point:
    """The samples that have these two scores."""

    x: float  # score in the baseline
    y: float  # score in the compared column
    rows: Sequence[Row]  # the samples, as they were drawn; one, unless scores are tied
    judged: int  # 1 where the compared column is better, -1 where it is worse, 0 where they are the same
    has_image: bool  # whether any of the samples has its image in both columns


@dataclass(frozen=True)
class Scatter:
    """The drawing of one reward."""

    reward: str  # whose scores
    points: Sequence[Point]  # at most `MOST`, those of many samples first, so that they hide no other
    different: int  # how many points there are
    samples: int  # with both scores; samples without one have no point
    low: float  # where both axes begin
    high: float  # where both end
    ticks: Sequence[float]  # the numbers along the axes, between the two
    lower: bool = False  # whether less is better

    def radius(self, point: Point) -> float:
        """Return the radius of a point, in units of the drawing."""
        return max(LEAST, self._unit * math.sqrt(len(point.rows)))

    @cached_property
    def _unit(self) -> float:
        """Radius of one sample."""
        return min(SINGLE, LARGEST / math.sqrt(max(len(one.rows) for one in self.points)))

    def across(self, score: float) -> float:
        """Return the place of a score from the left, in units of the drawing."""
        return (score - self.low) / (self.high - self.low) * SIZE

    def down(self, score: float) -> float:
        """Return the place of a score from the top."""
        return SIZE - self.across(score)


def scatter(reward: str, rows: Sequence[Row], with_images: Collection[int], lower: bool = False) -> Scatter | None:
    """Return scores before and after, of every sample that has both.

    Nothing is moved aside (no jitter): samples with the same two scores are one point, which grows with their number.

    Returns:
        None where no sample has both scores.
    """
    tied: dict[tuple[float, float], list[Row]] = {}
    for row in rows:
        before, after = scores(row)
        if before is not None and after is not None:
            tied.setdefault((before, after), []).append(row)
    if not tied:
        return None
    points = [
        Point(x, y, of_point, judgement(y - x, lower), any(row.order in with_images for row in of_point))
        for (x, y), of_point in tied.items()
    ]
    values = [score for pair in tied for score in pair]
    low, high, ticks = axis(min(values), max(values))
    shown = sorted(points[:MOST], key=lambda point: -len(point.rows))
    return Scatter(reward, shown, len(points), sum(map(len, tied.values())), low, high, ticks, lower)


def axis(lowest: float, highest: float) -> tuple[float, float, list[float]]:
    """Return the ends of an axis and the round numbers along it: multiples of 1, 2 or 5 times a power of ten."""
    reach = highest - lowest
    if not reach > 1e-9 * max(abs(lowest), abs(highest), 1e-3):  # one score, or a difference that is rounding
        reach = abs(highest) or 1.0
        lowest, highest = lowest - reach / 2, highest + reach / 2
    power = 10.0 ** math.floor(math.log10(reach / TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if reach / (power * factor) <= TICKS)
    low, high = lowest - MARGIN * reach, highest + MARGIN * reach
    first, last = math.ceil(low / step), math.floor(high / step)
    return low, high, [number * step for number in range(first, last + 1)]
