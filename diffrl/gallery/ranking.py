"""What votes say: of two sets a win rate beside the reward models', of three and more Bradley and Terry's strengths.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from diffrl.gallery.numbers import improvement
from diffrl.gallery.records import falls
from diffrl.gallery.votes import Side, Vote
from diffrl.statistics import LEVEL

if TYPE_CHECKING:  # no page but a ranking's needs numbers in arrays
    import numpy as np
    from numpy.typing import NDArray

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
    import numpy as np
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
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    count, label = connected_components(met, directed=False)
    return [np.flatnonzero(label == part).tolist() for part in range(count)]


def rankings(tallies: Sequence[Tally]) -> list[list[Ranked]]:
    """Rankings of the sets that were voted on, strongest first; one for each part that votes connect, of three or more.

    Args:
        tallies: of distinct pairs of sets.
    """
    import numpy as np

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
    import numpy as np

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


@dataclass(frozen=True)
class Rate:
    """A share of some trials with its 95 % Wilson interval; `share`, `low` and `high` are None without trials."""

    wins: int
    trials: int
    share: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def decides(self) -> bool:
        """Whether the interval leaves one half out."""
        return self.low is not None and self.high is not None and not self.low <= 0.5 <= self.high


@dataclass(frozen=True)
class Opinion:
    """A reward model beside the voters.

    Args:
        reward: its name.
        lower: whether less of it is better.
        prefers_b: of the distinct pairs that it tells apart, how many it finds better in B.
        alike: distinct pairs that it cannot tell apart.
        unknown: distinct pairs of which it has not scored both.
        agrees: of the votes that both decide, how often it says the same.
        left_out: votes for which it, or the voter, is undecided.
    """

    reward: str
    lower: bool
    prefers_b: Rate
    alike: int
    unknown: int
    agrees: Rate
    left_out: int


@dataclass(frozen=True)
class Tally:
    """All votes on two sets of samples.

    Args:
        a, b: a side of each, for their names.
        votes: with A and B the same way round in all of them.
        wins: votes for B.
        losses: votes for A.
        ties: neither.
        rate: of B over A, ties left out.
        with_ties: the share of B if a tie counts one half; None without votes.
        pairs: distinct pairs among the votes.
        voters: distinct names and sessions.
        opinions: of the reward models.
    """

    a: Side
    b: Side
    votes: Sequence[Vote]
    wins: int
    losses: int
    ties: int
    rate: Rate
    with_ties: float | None
    pairs: int
    voters: int
    opinions: Sequence[Opinion]

    @property
    def verdict(self) -> str:
        """One honest sentence."""
        count = f"{len(self.votes)} vote{'s' if len(self.votes) != 1 else ''}"
        if not self.rate.trials:
            return f"{count}, all equal: nobody saw a difference."
        if not self.rate.decides:
            return f"{count} cannot tell: the interval includes 50\u00a0%."
        better = "B is preferred to A" if (self.rate.low or 0) > 0.5 else "A is preferred to B"
        return f"{better}: the interval excludes 50\u00a0%."


def wilson(wins: int, trials: int) -> Rate:
    """A rate with the 95 % interval of Wilson (1927), as scipy computes it."""
    if not trials:
        return Rate(wins, trials)
    from scipy.stats import binomtest

    interval = binomtest(wins, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return Rate(wins, trials, wins / trials, float(interval.low), float(interval.high))


def tallies(votes: Sequence[Vote]) -> list[Tally]:
    """Votes by the two sets that they compare, whichever was called A; the first vote decides who is."""
    groups: dict[frozenset[tuple[str, str]], list[Vote]] = {}
    for vote in votes:
        group = groups.setdefault(frozenset((vote.a.place, vote.b.place)), [])
        group.append(vote.flipped() if group and group[0].a.place != vote.a.place else vote)
    return [_tally(group) for group in groups.values()]


def _tally(votes: Sequence[Vote]) -> Tally:
    wins, losses = (sum(vote.choice == choice for vote in votes) for choice in ("b", "a"))
    ties = len(votes) - wins - losses
    pairs = {(vote.a.sample, vote.b.sample, vote.a.picture, vote.b.picture): vote for vote in votes}
    names = dict.fromkeys(name for vote in votes for name in vote.a.rewards if name in vote.b.rewards)
    return Tally(
        votes[-1].a,
        votes[-1].b,
        votes,
        wins,
        losses,
        ties,
        wilson(wins, wins + losses),
        (wins + ties / 2) / len(votes),
        len(pairs),
        len({(vote.voter, vote.session) for vote in votes}),
        [_opinion(name, votes, list(pairs.values())) for name in names],
    )


def _opinion(reward: str, votes: Sequence[Vote], pairs: Iterable[Vote]) -> Opinion:
    own = [preferred(pair, reward) for pair in pairs]
    both = [
        (vote.choice, said)
        for vote in votes
        if (said := preferred(vote, reward)) in ("a", "b") and vote.choice != "tie"
    ]
    return Opinion(
        reward,
        any(is_lower(vote, reward) for vote in votes),
        wilson(own.count("b"), own.count("a") + own.count("b")),
        own.count("tie"),
        own.count(None),
        wilson(sum(choice == said for choice, said in both), len(both)),
        len(votes) - len(both),
    )


def preferred(vote: Vote, reward: str) -> str | None:
    """Which side a reward finds better: "a", "b", "tie"; None if it has not scored both."""
    a, b = vote.a.rewards.get(reward), vote.b.rewards.get(reward)
    if a is None or b is None:
        return None
    return "tie" if a == b else "b" if improvement(b - a, is_lower(vote, reward)) > 0 else "a"


def is_lower(vote: Vote, reward: str) -> bool:
    """Whether less of a reward is better, as either side knew when the vote was given."""
    return falls(reward, {*vote.a.lower, *vote.b.lower})
