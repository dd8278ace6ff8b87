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
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING

from diffrl.gallery.numbers import counted, improvement
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
class Rate:
    """A share of some trials with its 95 % interval; `share`, `low` and `high`, in [0, 1], are None without trials."""

    wins: int
    trials: int
    share: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def decides(self) -> bool:
        """Whether the interval leaves one half out."""
        return self.low is not None and self.high is not None and not self.low <= 0.5 <= self.high


def wilson(wins: int, trials: int) -> Rate:
    """Return a rate with the 95 % interval of Wilson (1927), as scipy computes it."""
    if not trials:
        return Rate(wins, trials)
    from scipy.stats import binomtest

    interval = binomtest(wins, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return Rate(wins, trials, wins / trials, float(interval.low), float(interval.high))


@dataclass(frozen=True)
class Opinion:
    """A reward model beside the voters."""

    reward: str  # its name
    lower: bool  # whether less of it is better
    prefers_b: Rate  # of the distinct pairs that it tells apart, how many it finds better in B
    undecided: int  # distinct pairs that it cannot tell apart
    unknown: int  # distinct pairs of which it has not scored both
    agrees: Rate  # of the votes that both decide, how often it says the same
    left_out: int  # votes for which it, or the voter, is undecided


@dataclass(frozen=True)
class Tally:
    """All votes on two sets of samples, with A and B the same way round in all of them."""

    votes: Sequence[Vote]

    @property
    def a(self) -> Side:
        """A side of A, for its name."""
        return self.votes[-1].a

    @property
    def b(self) -> Side:
        """A side of B, for its name."""
        return self.votes[-1].b

    @cached_property
    def rate(self) -> Rate:
        """How often B was preferred to A, ties left out."""
        choices = [vote.choice for vote in self.votes if vote.choice != "tie"]
        return wilson(choices.count("b"), len(choices))

    @property
    def ties(self) -> int:
        """Votes for neither."""
        return len(self.votes) - self.rate.trials

    @property
    def with_ties(self) -> float:
        """The share of B if a tie counts one half."""
        return (self.rate.wins + self.ties / 2) / len(self.votes)

    @cached_property
    def pairs(self) -> Sequence[Vote]:
        """One vote for each distinct pair of images."""
        return list({(one.a.sample, one.b.sample, one.a.picture, one.b.picture): one for one in self.votes}.values())

    @property
    def voters(self) -> int:
        """Distinct names and sessions."""
        return len({(vote.voter, vote.session) for vote in self.votes})

    @cached_property
    def opinions(self) -> Sequence[Opinion]:
        """Opinions of the reward models that are known of both sides of a vote."""
        names = dict.fromkeys(name for vote in self.votes for name in vote.a.rewards if name in vote.b.rewards)
        return [_opinion(name, self.votes, self.pairs) for name in names]

    @property
    def verdict(self) -> str:
        """One honest sentence."""
        count = counted(len(self.votes), "vote")
        if not self.rate.trials:
            return f"{count}, all equal: nobody saw a difference."
        if not self.rate.decides:
            return f"{count} cannot tell: the interval includes 50\u00a0%."
        better = "B is preferred to A" if (self.rate.low or 0) > 0.5 else "A is preferred to B"
        return f"{better}: the interval excludes 50\u00a0%."


def tallies(votes: Sequence[Vote]) -> list[Tally]:
    """Return group votes by the two sets that they compare, whichever was called A; the first vote decides who is."""
    groups: dict[frozenset[tuple[str, str]], list[Vote]] = {}
    for vote in votes:
        group = groups.setdefault(frozenset((vote.a.samples, vote.b.samples)), [])
        group.append(vote.flipped() if group and group[0].a.samples != vote.a.samples else vote)
    return [Tally(group) for group in groups.values()]


def _opinion(reward: str, votes: Sequence[Vote], pairs: Iterable[Vote]) -> Opinion:
    judged = [preferred(pair, reward) for pair in pairs]
    both = [(vote.choice, preferred(vote, reward)) for vote in votes if vote.choice != "tie"]
    decided = [choice == judgement for choice, judgement in both if judgement in ("a", "b")]
    return Opinion(
        reward=reward,
        lower=any(is_lower(vote, reward) for vote in votes),
        prefers_b=wilson(judged.count("b"), judged.count("a") + judged.count("b")),
        undecided=judged.count("tie"),
        unknown=judged.count(None),
        agrees=wilson(sum(decided), len(decided)),
        left_out=len(votes) - len(decided),
    )


def preferred(vote: Vote, reward: str) -> str | None:
    """Return which side a reward finds better: "a", "b", "tie"; None if it has not scored both."""
    a, b = vote.a.rewards.get(reward), vote.b.rewards.get(reward)
    if a is None or b is None:
        return None
    if a == b:
        return "tie"
    return "b" if improvement(b - a, is_lower(vote, reward)) > 0 else "a"


def is_lower(vote: Vote, reward: str) -> bool:
    """Return whether less of a reward is better, as either side knew when the vote was given."""
    return falls(reward, {*vote.a.lower, *vote.b.lower})


@dataclass(frozen=True)
class Ranked:
    """One set of images among others.

    Args:
        side: of it, for its name.
        rate: its wins among the decided votes; the share and its interval are those of being preferred to a set of
            average strength among these.
        ties: votes for neither.
        first: best place that the votes leave it: one more than the number of sets that are surely stronger, each by
            the 95 % interval of its difference.
        last: worst place.
    """

    side: Side
    rate: Rate
    ties: int
    first: int
    last: int


def bradley_terry(wins: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return fit strengths of n >= 2 sets as the file's head says, with the imaginary votes.

    Args:
        wins: (n, n) how often row was preferred to column, ties as half; the pairs that met connect all sets.

    Returns:
        (n,) strengths in log-odds, of mean 0, and (n, n) their covariance: the pseudoinverse of the information,
        which knows differences alone.

    Raises:
        ValueError: sets that no chain of pairs connects, of which none is stronger.
    """
    import numpy as np
    from scipy.optimize import minimize
    from scipy.sparse.csgraph import laplacian
    from scipy.special import expit

    met = (wins + wins.T) > 0
    if len(parts(met)) > 1:
        raise ValueError("strengths need sets that a chain of compared pairs connects")
    counted = wins + met * (len(wins) - 1) / met.sum()  # met counts each pair twice: half a vote to each side
    trials = counted + counted.T

    def chance(s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(expit(s[:, None] - s[None, :]))

    def loss(s: NDArray[np.float64]) -> float:
        return float((counted * np.logaddexp(0, s[None, :] - s[:, None])).sum())

    def gradient(s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((trials * chance(s) - counted).sum(1))

    def information(s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(laplacian(trials * chance(s) * chance(s).T))

    start, options = np.zeros(len(wins)), {"gtol": 1e-8}
    strengths = minimize(loss, start, method="trust-exact", jac=gradient, hess=information, options=options).x
    return strengths - strengths.mean(), np.linalg.pinv(information(strengths), hermitian=True)


def parts(met: NDArray[np.bool_]) -> list[list[int]]:
    """Return the sets that a chain of pairs connects, each ascending.

    Args:
        met: (n, n) symmetric, whether two were compared.
    """
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    count, label = connected_components(met, directed=False)
    return [np.flatnonzero(label == part).tolist() for part in range(count)]


def rankings(tallies: Sequence[Tally]) -> list[list[Ranked]]:
    """Rank the sets that were voted on, strongest first; one ranking for each three or more that votes connect."""
    import numpy as np

    sides: dict[tuple[str, str], Side] = {}
    for tally in tallies:
        for side in (tally.a, tally.b):
            sides.setdefault(side.samples, side)
    if len(sides) < FEWEST:
        return []
    every, number = list(sides.values()), {samples: index for index, samples in enumerate(sides)}
    wins, ties = np.zeros((2, len(sides), len(sides)))
    for tally in tallies:
        a, b = number[tally.a.samples], number[tally.b.samples]
        if a != b:
            wins[b, a], wins[a, b] = tally.rate.wins, tally.rate.trials - tally.rate.wins
            ties[a, b] = ties[b, a] = tally.ties
    return [
        _ranked([every[i] for i in part], wins[np.ix_(part, part)], ties[np.ix_(part, part)])
        for part in parts((wins + wins.T + ties) > 0)
        if len(part) >= FEWEST
    ]


def _ranked(sides: Sequence[Side], wins: NDArray[np.float64], ties: NDArray[np.float64]) -> list[Ranked]:
    import numpy as np
    from scipy.special import expit

    strengths, covariance = bradley_terry(wins + ties / 2)
    spread = np.diag(covariance)
    ahead = strengths[:, None] - strengths[None, :]
    stronger = ahead > Z * np.sqrt(np.maximum(spread[:, None] + spread[None, :] - 2 * covariance, 0))  # row than column
    shares = expit(strengths[:, None] + Z * np.sqrt(spread)[:, None] * np.array([0.0, -1.0, 1.0]))
    trials = wins + wins.T
    return [
        Ranked(
            side=sides[i],
            rate=Rate(int(wins[i].sum()), int(trials[i].sum()), *shares[i].tolist()),
            ties=int(ties[i].sum()),
            first=1 + int(stronger[:, i].sum()),
            last=len(sides) - int(stronger[i].sum()),
        )
        for i in np.argsort(-strengths, kind="stable")
    ]
