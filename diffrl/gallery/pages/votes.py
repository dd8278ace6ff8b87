"""What blind votes say, and the same as preference pairs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from diffrl.gallery.columns import main_states, named, thinned
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.opponents import usual
from diffrl.gallery.preferences import exported_address, has_pair, jsonl, pairs, parquet
from diffrl.gallery.query import Query
from diffrl.gallery.ranking import rankings
from diffrl.gallery.records import Answer, state_key
from diffrl.gallery.results import chosen, match_view, opening, ranking_view
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.gallery.tally import tallies
from diffrl.gallery.votes import Vote, read_votes


def votes(site: Site, query: Query) -> Answer:
    """What the votes say, and every one of them."""
    file = Path(site.options["votes"])
    found = read_votes(file)
    wanted = chosen(site, query, found.votes)
    page = query.whole("page", 1, low=1)
    found_of = tallies(wanted)
    matches = [match_view(site, tally, page) for tally in found_of]
    ranked = [ranking_view(site, ranking) for ranking in rankings(found_of)]
    run = _run(site, query)
    given = {name: query.text(name) for name in ("a", "b", "run")}
    offers, begin = ([], ("", "")) if site.links.exported else _begin(site, given)
    return Answer(
        site.render(
            "votes.html",
            layout="run_base.html" if run else "base.html",
            run=run,
            file=file.name,
            matches=matches,
            opening=opening(matches, ranked),
            rankings=ranked,
            unreadable=found.unreadable,
            hidden=len(chosen(site, Query(), found.votes)) - len(wanted),
            offers=offers,
            begin=begin,
            given=given,
            page=page,
            more=any(match["more"] for match in matches),
            **_files(site, wanted),
        )
    )


def _run(site: Site, query: Query) -> RunSource | None:
    """The run that an address is about: it names it, or two evaluations of it; or there is no other."""
    keys = {query.text(name).rpartition("@")[0] for name in ("a", "b")} if query.text("a") else {query.text("run")}
    return next((run for run in site.runs if keys == {run.key} or len(site.sources) == 1), None)


def _files(site: Site, wanted: Sequence[Vote]) -> dict[str, bool]:
    """Which files of preference pairs can be made and have anything in them."""
    address = exported_address(site) if site.links.exported else None
    table = importlib.util.find_spec("pyarrow") is not None and has_pair(wanted, site.sources)
    return {"jsonl": any(jsonl([vote], address) for vote in wanted), "parquet": table}


def _begin(site: Site, given: Mapping[str, str]) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """What can be voted on, as (key, words), and the chosen two: the address's, else a pair that exists."""
    keys = (given["a"], given["b"])
    if not all(keys):
        try:
            a, b = usual(site, given["run"])
            keys = (a.key, b.key)
        except GalleryError:  # there are no two yet: nothing is offered either
            keys = ("", "")
    return _offers(site, keys), keys


def _offers(site: Site, kept: Sequence[str]) -> list[tuple[str, str]]:
    """States that can be voted on, as (key, words): of many evenly chosen ones, and those of the keys in `kept`."""
    offers = []
    for source in site.sources:
        try:
            states = main_states(source.states())
            own = [state for state in states if state_key(source, state) in kept]
            columns = named([(source, state) for state in thinned(states, own)])
        except GalleryError:  # it is told on its own pages
            continue
        plain = len(site.sources) == 1 or source.kind == "folder"
        offers += [(one.key, one.label if plain else f"{source.title} · {one.label}") for one in columns]
    return offers


def preferences_jsonl(site: Site, query: Query) -> Answer:
    """Votes that prefer one picture, a JSON object a line; see `diffrl.gallery.preferences`."""
    wanted = chosen(site, query, read_votes(Path(site.options["votes"])).votes)
    address = exported_address(site) if site.links.exported else None
    return Answer(jsonl(wanted, address), "application/x-ndjson; charset=utf-8", filename="preferences.jsonl")


def preferences_parquet(site: Site, query: Query) -> Answer:
    """The same with the pictures' bytes, as Parquet."""
    wanted = chosen(site, query, read_votes(Path(site.options["votes"])).votes)
    body = parquet(pairs(wanted, site.sources))
    return Answer(body, "application/vnd.apache.parquet", filename="preferences.parquet")
