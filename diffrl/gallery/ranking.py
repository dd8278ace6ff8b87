"""Three and more sets of images by their votes: Bradley and Terry's strengths, with intervals.

The model (Biometrika 39, 1952): each set has a strength s, and a voter prefers i to j with probability
1 / (1 + exp(s_j - s_i)); votes are independent. It says what counting wins cannot: a win over a strong set is worth
more than one over a weak set, and sets that never met are compared by those that both met.

A tie is half a win for either, as in the win rate of a single match: no parameter is spent on it, unlike Davidson's
model, and as ties vary less than wins, intervals are if anything too wide.

A set that never lost has no finite maximum of the likelihood. Imaginary votes give it one: as many as there are free
strengths, evenly over the pairs that met, half to each side. Of two sets this is the empirical logit (Haldane 1956),
of a balanced tournament of equals Firth's correction (Biometrika 80, 1993); its weight vanishes as votes are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from diffrl.gallery.tally import Tally
from diffrl.gallery.votes import Side
from diffrl.statistics import LEVEL

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Half the width of an interval in standard errors."""
FEWEST = 3
"""Sets of a ranking: of two the win rate says it all."""


@dataclass(frozen=True)
class Ranked:
    """One set of images.

    Args:
        side: of it, for its name.
        wins: votes for it.
        losses: votes for another.
        ties: neither.
        share: how often it is preferred to one of average strength among these, in [0, 1].
        low: of the 95 % interval of `share`.
        high: of it.
        first: best place that the votes leave it: one more than the number of sets that are surely stronger, each by
            the 95 % interval of its difference.
        last: worst place.
    """

    side: Side
    wins: int
    losses: int
    ties: int
    share: float
    low: float
    high: float
    first: int
    last: int


def bradley_terry(wins: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Strengths of n >= 2 sets as the file's head says, with the imaginary votes, and their covariance.

    Args:
        wins: (n, n) how often row was preferred to column, ties as half; the pairs that met connect all sets.

    Returns:
        (n,) strengths in log-odds, of mean 0, and (n, n) their covariance: the inverse information.

    Raises:
        ValueError: sets that no chain of pairs connects, of which none is stronger.
    """
    from scipy.optimize import minimize

    n = len(wins)
    met = (wins + wins.T) > 0
    if len(parts(met)) > 1:
        raise ValueError("strengths need sets that a chain of compared pairs connects")
    counted = wins + met * (n - 1) / met.sum()  # met counts each pair twice: half a vote to each side
    trials = counted + counted.T

    def chance(free: NDArray[np.float64]) -> NDArray[np.float64]:
        s = np.concatenate([[0.0], free])  # the first is held: only differences matter
        return np.asarray(1 / (1 + np.exp(s[None, :] - s[:, None])))

    def loss(free: NDArray[np.float64]) -> float:
        s = np.concatenate([[0.0], free])
        return float((counted * np.logaddexp(0, s[None, :] - s[:, None])).sum())

    def slope(free: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((trials * chance(free) - counted).sum(1)[1:])

    def information(free: NDArray[np.float64]) -> NDArray[np.float64]:
        p = chance(free)
        weight = trials * p * (1 - p)
        return np.asarray((np.diag(weight.sum(1)) - weight)[1:, 1:])

    found = minimize(loss, np.zeros(n - 1), method="trust-exact", jac=slope, hess=information, options={"gtol": 1e-8})
    covariance = np.zeros((n, n))
    covariance[1:, 1:] = np.linalg.inv(information(found.x))
    centre = np.eye(n) - 1 / n
    return centre @ np.concatenate([[0.0], found.x]), centre @ covariance @ centre


def parts(met: NDArray[np.bool_]) -> list[list[int]]:
    """Sets that a chain of pairs connects, each ascending.

    Args:
        met: (n, n) symmetric, whether two were compared.
    """
    from scipy.sparse.csgraph import connected_components

    count, label = connected_components(met, directed=False)
    return [np.flatnonzero(label == part).tolist() for part in range(count)]


def rankings(tallies: Sequence[Tally]) -> list[list[Ranked]]:
    """Rankings of the sets that were voted on, strongest first; one for each part that votes connect, of three or more.

    Args:
        tallies: of distinct pairs of sets.
    """
    sides: dict[tuple[str, str], Side] = {}
    for tally in tallies:
        for side in (tally.a, tally.b):
            sides.setdefault(side.place, side)
    places = list(sides)
    n = len(places)
    wins, ties = np.zeros((n, n)), np.zeros((n, n))
    for tally in tallies:
        a, b = places.index(tally.a.place), places.index(tally.b.place)
        if a != b:
            wins[b, a], wins[a, b] = tally.wins, tally.losses
            ties[a, b] = ties[b, a] = tally.ties
    if n < FEWEST:
        return []
    found = []
    for part in parts((wins + wins.T + ties) > 0):
        if len(part) >= FEWEST:
            own = np.ix_(part, part)
            found.append(_ranked([sides[places[i]] for i in part], wins[own], ties[own]))
    return found


def _ranked(sides: Sequence[Side], wins: NDArray[np.float64], ties: NDArray[np.float64]) -> list[Ranked]:
    strengths, covariance = bradley_terry(wins + ties / 2)
    spread = np.diag(covariance)
    ahead = strengths[:, None] - strengths[None, :]
    reach = Z * np.sqrt(np.maximum(spread[:, None] + spread[None, :] - 2 * covariance, 0))
    stronger = ahead > reach  # row than column
    ends = strengths[:, None] + Z * np.sqrt(spread)[:, None] * np.array([0.0, -1.0, 1.0])
    shares = 1 / (1 + np.exp(-ends))
    return [
        Ranked(
            sides[i],
            int(wins[i].sum()),
            int(wins[:, i].sum()),
            int(ties[i].sum()),
            *(float(share) for share in shares[i]),
            1 + int(stronger[:, i].sum()),
            len(sides) - int(stronger[i].sum()),
        )
        for i in np.argsort(-strengths, kind="stable")
    ]
