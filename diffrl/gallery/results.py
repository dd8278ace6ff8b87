"""Votes and tallies as their page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffrl.gallery.columns import label
from diffrl.gallery.paths import is_video
from diffrl.gallery.query import Query
from diffrl.gallery.ranking import Ranked, Rate, Tally, preferred
from diffrl.gallery.records import State
from diffrl.gallery.site import Site
from diffrl.gallery.votes import Side, Vote, home, source_of

SHOWN = 50
"""Votes on one page of results."""


def chosen(site: Site, query: Query, every: Sequence[Vote]) -> list[Vote]:
    """The votes that an address asks for: on a and b, on a run, or all.

    An exported site has those alone whose two sides are in it: others would tell of runs that nobody chose to share.
    """
    if site.links.exported:
        every = [vote for vote in every if source_of(site.sources, vote.a) and source_of(site.sources, vote.b)]
    if query.text("a") and query.text("b"):
        sides = [site.state(query.text(name)) for name in ("a", "b")]
        places = {(home(source), state.key) for source, state in sides}
        return [vote for vote in every if {vote.a.place, vote.b.place} == places]
    if query.text("run"):
        path = home(site.source(query.text("run")))
        return [vote for vote in every if path in (vote.a.path, vote.b.path)]
    return list(every)


def opening(matches: Sequence[Mapping[str, Any]], ranked: Sequence[Mapping[str, Any]]) -> str:
    """The page's first words: who is preferred to whom; of many matches the ranking, or their number."""
    if ranked:
        return str(ranked[0]["verdict"])
    if len(matches) != 1:
        return f"{len(matches)} blind comparisons" if matches else "Blind votes"
    (one,) = matches
    rate, count = one["tally"].rate, len(one["tally"].votes)
    votes = f"{count} vote{'s' if count != 1 else ''}"
    if not rate.decides:
        return f"{votes} cannot tell {one['a']} from {one['b']}"
    first, second = (one["b"], one["a"]) if rate.low > 0.5 else (one["a"], one["b"])
    return f"{first} is preferred to {second}: {votes}"


def match_view(site: Site, tally: Tally, page: int) -> dict[str, Any]:
    """A tally as templates/votes.html shows it; all of its votes in an exported site, else a page of them."""
    newest = list(reversed(tally.votes))
    start = 0 if site.links.exported else (page - 1) * SHOWN
    end = len(newest) if site.links.exported else start + SHOWN
    total = max(len(tally.votes), 1)
    same = tally.a.path == tally.b.path
    opinions = [(one, percent(one.prefers_b), percent(one.agrees)) for one in tally.opinions]
    return {
        "tally": tally,
        "a": words(tally.a, same),
        "b": words(tally.b, same),
        "title": tally.a.source if same else "",
        "shares": [100 * count / total for count in (tally.losses, tally.ties, tally.wins)],
        "rate": percent(tally.rate),
        "with_ties": None if tally.with_ties is None else f"{100 * tally.with_ties:.0f}\u00a0%",
        "opinions": [shown for shown in opinions if "/" not in shown[0].reward],
        "parts": [shown for shown in opinions if "/" in shown[0].reward],
        "columns": compared(site, tally),
        "repeated": len(tally.votes) > tally.pairs,
        "votes": [row_view(site, vote, tally, place) for place, vote in enumerate(newest[start:end], start)],
        "more": end < len(newest),
    }


def ranking_view(site: Site, ranking: Sequence[Ranked]) -> dict[str, Any]:
    """A ranking as templates/votes.html shows it."""
    same = len({one.side.path for one in ranking}) == 1
    names = [words(one.side, same) for one in ranking]
    first, several = ranking[0], [name for one, name in zip(ranking, names, strict=True) if one.first == 1]
    return {
        "title": first.side.source if same else "",
        "verdict": f"{names[0]} is preferred to all {len(ranking) - 1} others."
        if first.last == 1
        else f"The votes cannot tell which is first: {', '.join(several[:-1])} or {several[-1]}.",
        "rows": [
            {
                "name": name,
                "source": source_of(site.sources, one.side),
                "one": one,
                "place": str(one.first) if one.first == one.last else f"{one.first}–{one.last}",
                "rate": percent(Rate(one.wins, one.wins + one.losses, one.share, one.low, one.high)),
            }
            for name, one in zip(names, ranking, strict=True)
        ],
    }


def compared(site: Site, tally: Tally) -> list[str]:
    """The two as the compare page names them; nothing if one is not in this gallery."""
    sources = [source_of(site.sources, side) for side in (tally.a, tally.b)]
    keys = [f"{one.key}@{side.state}" for one, side in zip(sources, (tally.a, tally.b), strict=True) if one is not None]
    return keys if len(keys) == len(sources) else []


def row_view(site: Site, vote: Vote, tally: Tally, place: int) -> dict[str, Any]:
    """A vote as a row of the table; its `number` counts from the oldest, so that it stays when more are given."""
    said = [name for name in ("a", "b") if vote.choice == name]
    opinions = [
        (one.reward, preferred(vote, one.reward), vote.a.rewards.get(one.reward), vote.b.rewards.get(one.reward))
        for one in tally.opinions
        if "/" not in one.reward
    ]
    pictures = [_thumbnail(site, side, name) for side, name in ((vote.a, "A"), (vote.b, "B"))]
    return {
        "number": len(tally.votes) - place,
        "vote": vote,
        "said": said[0].upper() if said else "equal",
        "pictures": pictures,
        "opinions": opinions,
    }


def _thumbnail(site: Site, side: Side, name: str) -> dict[str, Any] | None:
    """What the template needs of a picture; None if its source is not in this gallery. Videos have no controls here."""
    source = source_of(site.sources, side)
    if source is None:
        return None
    video = is_video(side.picture)
    address = site.links.media(source.key, side.picture, size=None if video else 128)
    full = site.links.media(source.key, side.picture)
    return {"src": address, "full": full, "video": video, "alt": f"{name}: {side.sample[0][:120]}"}


def words(side: Side, short: bool) -> str:
    """The name of a side: "evaluation 80", with the source's before it unless `short`."""
    stage, _, iteration = side.state.rpartition("-")
    if stage == "folder" or not iteration.isdecimal():
        return side.source
    said = label(State(stage, int(iteration)))
    return said if short else f"{side.source} · {said}"


def percent(rate: Rate) -> dict[str, Any]:
    """A rate as text and as places on a scale from 0 to 100; texts are dashes without trials."""
    of = f"{rate.wins} of {rate.trials}"
    if rate.share is None or rate.low is None or rate.high is None:
        return {
            "share": "–",
            "interval": "–",
            "at": None,
            "low": 0.0,
            "width": 0.0,
            "of": of,
        }
    return {
        "share": f"{100 * rate.share:.0f}\u00a0%",
        "interval": f"{100 * rate.low:.0f}–{100 * rate.high:.0f}\u00a0%",
        "at": 100 * rate.share,
        "low": 100 * rate.low,
        "width": 100 * (rate.high - rate.low),
        "of": of,
    }
