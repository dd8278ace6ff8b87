"""What a list of samples is asked for: filters, order, which columns are compared, and which page of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diffrl.gallery.columns import Column, default_reward, lower_rewards, reward_names
from diffrl.gallery.compare import SHOWN, SORTS, Row
from diffrl.gallery.query import Query


@dataclass(frozen=True)
class Wanted:
    """What a list of samples was asked for."""

    names: Sequence[str]  # rewards that there are
    reward: str | None  # the chosen one; None if there is none at all
    note: str  # why another reward than the wanted one is shown; "" if it is not
    prompt: str  # words that prompts contain
    sort: str  # one of the page's orders
    lower: Collection[str] = ()  # names of which less is better

    @property
    def falling(self) -> bool:
        """Whether less is better of the chosen reward."""
        return self.reward in self.lower

    @property
    def parameters(self) -> dict[str, str | None]:
        """As they stand in an address."""
        sort = self.sort if self.sort != "order" else None
        return {"prompt": self.prompt, "reward": self.reward, "sort": sort}


@dataclass(frozen=True)
class Versus:
    """Which column is compared with which."""

    of: int  # place of the compared one
    against: int  # place of the baseline
    show: str  # one of `compare.SHOWN`, or "" for all
    parameters: Mapping[str, str | None]  # as they stand in an address


def versus(query: Query, keys: Sequence[str]) -> Versus:
    """Return the columns of an address that are compared; the last with the first where it names none that is there.

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


def wanted(query: Query, columns: Sequence[Column]) -> Wanted:
    """Return the filters and the order of an address.

    Raises:
        GalleryError: no such order, which no form of the gallery asks for.
    """
    names = reward_names(columns)
    asked = query.text("reward")
    reward = asked if asked in names else default_reward(columns, names)
    note = ""
    if asked and asked not in names:
        note = f"These samples have no reward {asked[:100]!r}. Shown: {reward or 'none'}."
    sort = query.choice("sort", SORTS, "order")
    return Wanted(names, reward, note, query.text("prompt"), sort, lower_rewards(columns, names))


def paged(query: Query, rows: Sequence[Row], size: int, most: int | None = None) -> tuple[list[Row], int, int]:
    """Return the rows of a page, its number and how many pages there are; with `most` one page has the first of all.

    Raises:
        GalleryError: there is no such page.
    """
    if most is not None:
        return list(rows[:most]), 1, 1
    pages = max(1, -(-len(rows) // size))
    number = query.whole("page", 1, 1, pages)
    return list(rows[(number - 1) * size : number * size]), number, pages


def orders(changes: bool, reward: str | None) -> dict[str, str]:
    """Return the orders that make sense: without rewards there is no value, with one column no gain."""
    wanted = ("order", *(("gain", "loss") if changes and reward else ()), *(("value",) if reward else ()), "prompt")
    return {name: SORTS[name] for name in wanted}
