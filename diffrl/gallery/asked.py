"""What a list of samples is asked for: filters, order, which columns are compared, and which page of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from diffrl.gallery.columns import Column, default_reward, lower_rewards, reward_names
from diffrl.gallery.compare import SHOWN, SORTS, Row
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.query import Query
from diffrl.gallery.rows import EXPORTED

RANGES = {"value": "value", "change": "change"}


@dataclass(frozen=True)
class Wanted:
    """What a list of samples was asked for.

    Args:
        names: rewards that there are.
        reward: the chosen one; None if there is none at all.
        note: why another reward than the wanted one is shown; "" if it is not.
        prompt: words that prompts contain.
        on: what the range is of: "value" or "change".
        low: of the range, None without.
        high: of the range, None without.
        sort: one of the page's orders.
        lower: names of which less is better.
        problem: what is wrong with the range, which then holds for nothing; "" if it is right.
        typed: what stands in the fields of the range, as it was written.
    """

    names: Sequence[str]
    reward: str | None
    note: str
    prompt: str
    on: str
    low: float | None
    high: float | None
    sort: str
    lower: Collection[str] = ()
    problem: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """Return the page's status: a mistake is shown in its place, beside the form, and is one all the same."""
        return 400 if self.problem else 200

    @property
    def falling(self) -> bool:
        """Whether less is better of the chosen reward."""
        return self.reward in self.lower

    @property
    def parameters(self) -> dict[str, str | float | None]:
        """As they stand in an address."""
        ranged = self.low is not None or self.high is not None
        on, sort = self.on if ranged and self.on != "value" else None, self.sort if self.sort != "order" else None
        return {
            "prompt": self.prompt,
            "reward": self.reward,
            "on": on,
            "low": self.low,
            "high": self.high,
            "sort": sort,
        }


@dataclass(frozen=True)
class Versus:
    """Which column is compared with which.

    Args:
        of: place of the compared one.
        against: place of the baseline.
        show: one of `compare.SHOWN`, or "" for all.
        parameters: as they stand in an address.
    """

    of: int
    against: int
    show: str
    parameters: Mapping[str, str | None]


def versus(query: Query, keys: Sequence[str]) -> Versus:
    """Return the columns of an address that are compared; the last with the first where it names none that is there.

    Args:
        query: of the address.
        keys: of the columns; one that is compared with itself is compared with the first other one.

    Raises:
        GalleryError: something else than one of `compare.SHOWN` is to be shown.
    """
    show = query.choice("show", SHOWN, "better") if query.text("show") else ""
    of, against = (keys.index(key) if (key := query.text(name)) in keys else None for name in ("of", "against"))
    last = len(keys) - 1
    if of is None:
        of = last if against != last else 0
    if against is None or against == of:
        against = 0 if of or not last else 1
    named = {"of": keys[of] if of != last else None, "against": keys[against] if against else None}
    return Versus(of, against, show, {**named, "show": show})


def wanted(query: Query, columns: Sequence[Column], sorts: Sequence[str]) -> Wanted:
    """Return the filters and the order of an address; a range that is none is told by `Wanted.problem`.

    Raises:
        GalleryError: no such order, which no form of the gallery asks for.
    """
    names = reward_names(columns)
    asked = query.text("reward")
    reward = asked if asked in names else default_reward(columns, names)
    note = ""
    if asked and asked not in names:
        note = f"These samples have no reward {asked[:100]!r}. Shown: {reward or 'none'}."
    low, high, problem = _range(query)
    typed = {name: query.text(name) for name in ("low", "high")}
    on, sort = query.choice("on", list(RANGES), "value"), query.choice("sort", sorts, "order")
    lower = lower_rewards(columns, names)
    return Wanted(names, reward, note, query.text("prompt"), on, low, high, sort, lower, problem, typed)


def _range(query: Query) -> tuple[float | None, float | None, str]:
    """Return the ends of the range, and what is wrong with them; both None if anything is."""
    try:
        low, high = query.number("low"), query.number("high")
    except GalleryError as error:
        return None, None, str(error)
    if low is not None and high is not None and low > high:
        return None, None, f"low must not be above high. Got low={low:g}, high={high:g}. Exchange them."
    return low, high, ""


def paged(query: Query, rows: Sequence[Row], size: int, exported: bool) -> tuple[list[Row], int, int]:
    """Return the rows of a page, its number and how many pages there are; an exported page has all, up to `EXPORTED`.

    Raises:
        GalleryError: there is no such page.
    """
    if exported:
        return list(rows[:EXPORTED]), 1, 1
    pages = max(1, -(-len(rows) // size))
    number = query.whole("page", 1, 1, pages)
    return list(rows[(number - 1) * size : number * size]), number, pages


def orders(changes: bool, reward: str | None) -> dict[str, str]:
    """Return the orders that make sense: without rewards there is no value, with one column no gain."""
    wanted = ("order", *(("gain", "loss") if changes and reward else ()), *(("value",) if reward else ()), "prompt")
    return {name: SORTS[name] for name in wanted}
