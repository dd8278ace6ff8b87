"""What votes say: how often B beats A, how sure that is, and what the reward models would have said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diffrl.gallery.numbers import improvement
from diffrl.gallery.records import falls
from diffrl.gallery.votes import Side, Vote


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
