"""What changes over the iterations of a run, by kinds and their number: millions cost no more to add up than ten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Cycle:
    """A number that changes every few iterations, from one value to the next, and begins again after the last.

    Args:
        values: one after the other.
        each: iterations that a value stays for.
    """

    values: Sequence[int]
    each: int

    def total(self, iterations: int) -> int:
        """Return the sum over so many iterations from the first."""
        sums = [0, *accumulate(self.values)]
        stays, rest = divmod(iterations, self.each)
        rounds, position = divmod(stays, len(self.values))
        return self.each * (rounds * sums[-1] + sums[position]) + (rest * self.values[position] if rest else 0)


def phases(iterations: int, corners: Iterable[int], holds: Callable[[int], bool]) -> Iterator[tuple[int, int, bool]]:
    """Yield the stretches of a run in which something holds, and in which it does not.

    Args:
        iterations: of the run.
        corners: iterations between which it changes once at most.
        holds: whether it does in an iteration.

    Yields:
        First iteration of a stretch, the one after its last, and whether it holds there.
    """
    inner = {corner + step for corner in corners for step in (0, 1) if 0 < corner + step < iterations}
    starts = {0}
    for first, end in pairwise([0, *sorted(inner), iterations]):
        starts.add(first)
        low, high = first, end - 1
        if holds(low) != holds(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if holds(middle) == holds(low) else (low, middle)
            starts.add(high)
    for first, end in pairwise([*sorted(starts), iterations]):
        yield first, end, holds(first)
