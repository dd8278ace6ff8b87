"""What blind votes say: the page of results, and their files for other people's training scripts."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from diffrl.gallery.columns import label, main_states, named, thinned
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import counted
from diffrl.gallery.preferences import exported_address, jsonl, parquet, rows
from diffrl.gallery.query import Query
from diffrl.gallery.ranking import Ranked, Tally, preferred, rankings, tallies
from diffrl.gallery.records import Answer, State, csv_answer, state_key
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.gallery.votes import Side, Vote, home, read_votes, source_of, usual_pair

SHOWN = 50
"""Votes on one page of results."""


def votes(site: Site, query: Query) -> Answer:
    """Show what the votes say, and every one of them."""
    file = Path(site.options["votes"])
    read = read_votes(file)
    wanted = filter_votes(site, query, read.votes)
    page = query.whole("page", 1, low=1)
    matched = tallies(wanted)
    matches = [match_view(site, tally, page) for tally in matched]
    ranked = [ranking_view(ranking) for ranking in rankings(matched)]
    run = _run(site, query)
    address = {name: query.text(name) for name in ("a", "b", "run")}
    offers, begin = ([], ("", "")) if site.links.exported else _begin(site, address)
    return Answer(
        site.render(
            "votes.html",
            layout="run_base.html" if run else "base.html",
            run=run,
            headline=headline(matches, ranked),
            matches=matches,
            rankings=ranked,
            file=file.name,
            unreadable=read.unreadable,
            hidden=len(filter_votes(site, Query(), read.votes)) - len(wanted),
            offers=offers,
            begin=begin,
            address=address,
            page=page,
            more=any(match["more"] for match in matches),
            source_of=partial(source_of, site.sources),
            preferred=preferred,
            **_files(site, wanted),
        )
    )


def filter_votes(site: Site, query: Query, every: Sequence[Vote]) -> list[Vote]:
    """Return the votes that an address asks for: on a and b, on a run, or all.

    An exported site has those alone whose two sides are in it: others would tell of runs that nobody chose to share.
    """
    if site.links.exported:
        every = [vote for vote in every if source_of(site.sources, vote.a) and source_of(site.sources, vote.b)]
    if query.text("a") and query.text("b"):
        pair = [site.state(query.text(name)) for name in ("a", "b")]
        wanted = {(home(source), state.key) for source, state in pair}
        return [vote for vote in every if {vote.a.samples, vote.b.samples} == wanted]
    if query.text("run"):
        path = home(site.source(query.text("run")))
        return [vote for vote in every if path in (vote.a.path, vote.b.path)]
    return list(every)


def headline(matches: Sequence[Mapping[str, Any]], ranked: Sequence[Mapping[str, Any]]) -> str:
    """Say who is preferred to whom; of many matches the ranking's verdict, or their number."""
    if ranked:
        return str(ranked[0]["verdict"])
    if len(matches) != 1:
        return f"{len(matches)} blind comparisons" if matches else "Blind votes"
    (one,) = matches
    rate, votes = one["tally"].rate, counted(len(one["tally"].votes), "vote")
    if not rate.decides:
        return f"{votes} cannot tell {one['a']} from {one['b']}"
    first, second = (one["b"], one["a"]) if rate.low > 0.5 else (one["a"], one["b"])
    return f"{first} is preferred to {second}: {votes}"


def match_view(site: Site, tally: Tally, page: int) -> dict[str, Any]:
    """Return a tally as templates/votes.html shows it; all of its votes in an exported site, else a page of them.

    The votes have numbers from the oldest, so that a row keeps its own when more are given.
    """
    newest = list(enumerate(tally.votes, 1))[::-1]
    shown = newest if site.links.exported else newest[(page - 1) * SHOWN : page * SHOWN]
    one_source = tally.a.path == tally.b.path
    sources = [(source_of(site.sources, side), side.state) for side in (tally.a, tally.b)]
    columns = [f"{source.key}@{state}" for source, state in sources if source is not None]
    return {
        "tally": tally,
        "a": side_name(tally.a, one_source),
        "b": side_name(tally.b, one_source),
        "title": tally.a.source if one_source else "",
        "opinions": [one for one in tally.opinions if "/" not in one.reward],
        "parts": [one for one in tally.opinions if "/" in one.reward],
        "columns": columns if len(columns) == 2 else [],
        "votes": shown,
        "more": bool(shown) and shown[-1][0] > 1,
    }


def ranking_view(ranking: Sequence[Ranked]) -> dict[str, Any]:
    """Return a ranking as templates/votes.html shows it."""
    one_source = len({one.side.path for one in ranking}) == 1
    names = [side_name(one.side, one_source) for one in ranking]
    *others, last = [name for one, name in zip(ranking, names, strict=True) if one.first == 1]
    verdict = f"{names[0]} is preferred to all {len(ranking) - 1} others."
    if ranking[0].last > 1:
        verdict = f"The votes cannot tell which is first: {', '.join(others)} or {last}."
    return {"title": ranking[0].side.source if one_source else "", "verdict": verdict, "rows": ranking, "names": names}


def side_name(side: Side, short: bool) -> str:
    """Return the name of a side: "evaluation 80", with the source's before it unless `short`."""
    stage, _, iteration = side.state.rpartition("-")
    if stage == "folder" or not iteration.isdecimal():
        return side.source
    state = label(State(stage, int(iteration)))
    return state if short else f"{side.source} · {state}"


def ranking_csv(site: Site, query: Query) -> Answer:
    """Return the rankings as CSV: places that its 95 % interval leaves open, strength as a share, votes."""
    lines: list[list[object]] = [
        ["ranking", "samples", "first place", "last place", "share", "low", "high", "won", "lost", "equal"]
    ]
    wanted = filter_votes(site, query, read_votes(Path(site.options["votes"])).votes)
    for ranking in map(ranking_view, rankings(tallies(wanted))):
        for name, row in zip(ranking["names"], ranking["rows"], strict=True):
            rate = row.rate
            places, interval = (row.first, row.last), (rate.share, rate.low, rate.high)
            lines.append([ranking["title"], name, *places, *interval, rate.wins, rate.trials - rate.wins, row.ties])
    return csv_answer(lines, "ranking.csv")


def _run(site: Site, query: Query) -> RunSource | None:
    """Return the run that an address is about: it names it, or two evaluations of it; or there is no other."""
    keys = {query.text(name).rpartition("@")[0] for name in ("a", "b")} if query.text("a") else {query.text("run")}
    return next((run for run in site.runs if keys == {run.key} or len(site.sources) == 1), None)


def _files(site: Site, wanted: Sequence[Vote]) -> dict[str, bool]:
    """Say which files of preference pairs can be made and have anything in them; the first row ends the search."""
    address = exported_address(site) if site.links.exported else None
    has_pyarrow = importlib.util.find_spec("pyarrow") is not None
    return {
        "jsonl": any(jsonl([vote], address) for vote in wanted),
        "parquet": has_pyarrow and any(rows([vote], site.sources) for vote in wanted),
    }


def _begin(site: Site, address: Mapping[str, str]) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Return what can be voted on, as (key, words), and the chosen two: the address's, else a pair that exists."""
    keys = (address["a"], address["b"])
    if not all(keys):
        try:
            a, b = usual_pair(site, address["run"])
            keys = (a.key, b.key)
        except GalleryError:  # there are no two yet: nothing is offered either
            keys = ("", "")
    return _offers(site, keys), keys


def _offers(site: Site, chosen: Sequence[str]) -> list[tuple[str, str]]:
    """Return states that can be voted on, as (key, words): of many evenly chosen ones, and the `chosen` keys."""
    offers = []
    for source in site.sources:
        try:
            states = main_states(source.states())
            kept = [state for state in states if state_key(source, state) in chosen]
            columns = named([(source, state) for state in thinned(states, kept)])
        except GalleryError:  # it is told on its own pages
            continue
        plain = len(site.sources) == 1 or source.kind == "folder"
        offers += [(one.key, one.label if plain else f"{source.title} · {one.label}") for one in columns]
    return offers


def preferences_jsonl(site: Site, query: Query) -> Answer:
    """Return votes that prefer one image, a JSON object a line; see `diffrl.gallery.preferences`."""
    wanted = filter_votes(site, query, read_votes(Path(site.options["votes"])).votes)
    address = exported_address(site) if site.links.exported else None
    return Answer(jsonl(wanted, address), "application/x-ndjson; charset=utf-8", filename="preferences.jsonl")


def preferences_parquet(site: Site, query: Query) -> Answer:
    """Return the same with the images' bytes, as Parquet."""
    wanted = filter_votes(site, query, read_votes(Path(site.options["votes"])).votes)
    body = parquet(rows(wanted, site.sources))
    return Answer(body, "application/vnd.apache.parquet", filename="preferences.parquet")
