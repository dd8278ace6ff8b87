"""Blind votes: the page that takes them, one pair at a time, and the page and files of what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from diffrl.gallery.ballots import Ballot, Ballots, Pair, voter_name
from diffrl.gallery.columns import main_states, named, thinned
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.opponents import opponents, usual
from diffrl.gallery.paths import is_video
from diffrl.gallery.preferences import exported_address, has_pair, jsonl, pairs, parquet
from diffrl.gallery.query import Query
from diffrl.gallery.ranking import rankings, tallies
from diffrl.gallery.records import Answer, state_key
from diffrl.gallery.results import chosen, match_view, opening, ranking_view
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.gallery.thumbnails import MISSING, blind_picture, moves, part, sign
from diffrl.gallery.votes import Vote, read_votes

BODY = 20_000
"""Bytes of a vote's form, at most."""
BODY_SECONDS = 10.0
"""In which a form must arrive."""
FIELDS = 10


def vote(site: Site, query: Query) -> Answer:
    """Only the running server takes votes (`add_routes`)."""
    raise GalleryError("Votes need the running gallery. This one was exported. Start it: diffrl gallery RUN.", 404)


def add_routes(app: FastAPI, site: Site) -> None:
    """The routes that take votes and show pictures without their names.

    `site.options["random"]`, a `random.Random`, makes order and sides known to a test.
    """
    ballots = Ballots(site.options.get("random"))

    def show(request: Request) -> Response:
        query = Query({key: request.query_params.getlist(key) for key in request.query_params})
        if not query.text("session"):
            if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise GalleryError(
                    "A vote begins on the gallery's own pages. This link is elsewhere. Open it there.", 403
                )
            ballot = begin(site, ballots, query)
            return RedirectResponse(site.links.page("vote", session=ballot.name), 303)
        ballot = ballots.get(query.text("session"))
        if ballot.current is None or query.text("results"):
            return RedirectResponse(_results(site, ballot), 303)
        return Response(vote_page(site, ballot), media_type="text/html; charset=utf-8")

    async def take(request: Request) -> Response:
        wants_json = "application/json" in request.headers.get("accept", "")
        try:
            body = await body_of(request)
            ballot = await run_in_threadpool(take_vote, site, ballots, request.headers, body)
        except GalleryError as error:
            if not wants_json:
                raise
            return Response(json.dumps({"error": str(error)}), error.status, media_type="application/json")
        if wants_json:
            return Response(json.dumps(_data(site, ballot)), media_type="application/json")
        return RedirectResponse(site.links.page("vote", session=ballot.name), 303)

    def picture(name: str, request: Request) -> Response:
        try:
            data, kind = blind_picture(*ballots.files(name))
        except GalleryError as error:
            words = sign("too large") if error.status == 413 else MISSING
            return Response(words, error.status, media_type="image/svg+xml")
        data, status, headers = part(data, request.headers.get("range"))
        return Response(data, status, {"Cache-Control": "private, max-age=600", **headers}, media_type=kind)

    app.add_api_route("/vote", show, methods=["GET"], response_model=None)
    app.add_api_route("/vote", take, methods=["POST"], response_model=None)
    app.add_api_route("/vote/picture/{name}", picture, methods=["GET"], response_model=None)


def begin(site: Site, ballots: Ballots, query: Query) -> Ballot:
    """A ballot on what the address asks for: a and b, or the first and last evaluation of a run, or the two folders.

    Raises:
        GalleryError: there is nothing to compare.
    """
    a, b = opponents(site, query)
    return ballots.begin(a, b, voter_name(query.text("voter")))


def vote_page(site: Site, ballot: Ballot) -> str:
    """The page of a ballot's current pair."""
    notes = []
    if ballot.drawn_of > len(ballot.pairs) + ballot.left_out:
        notes.append(f"{len(ballot.pairs)} of {ballot.drawn_of} pairs, chosen at random.")
    if ballot.left_out:
        are = "pair is" if ballot.left_out == 1 else "pairs are"
        notes.append(f"{ballot.left_out} {are} left out: an image was not kept, or is gone.")
    return site.render("vote.html", ballot=ballot, data=_data(site, ballot), notes=notes)


def take_vote(site: Site, ballots: Ballots, headers: Mapping[str, str], body: bytes) -> Ballot:
    """Take the form of a vote.

    Args:
        site: of the gallery.
        ballots: all of them.
        headers: of the request.
        body: session, key, and pair and choice, or undo.

    Raises:
        GalleryError: it comes from another page (403), or is no vote (400).
    """
    if not same_origin(headers):
        raise GalleryError("Votes are taken from the gallery's own page only. This came from another. Vote there.", 403)
    try:
        given = parse_qs(body.decode("utf-8", "replace"), max_num_fields=FIELDS)
    except ValueError as error:
        raise GalleryError(f"A vote has at most {FIELDS} fields. Got more. Vote on the gallery's page.", 400) from error
    fields = {name: values[-1] for name, values in given.items()}
    ballot = ballots.get(fields.get("session", ""))
    if fields.get("key") != ballot.key:
        raise GalleryError("A vote needs the key of its page. Got another. Reload the page.", 403)
    file = Path(site.options["votes"])
    if fields.get("choice") == "undo":
        ballot.undo(file)
    else:
        ballot.answer(fields.get("pair", ""), fields.get("choice", ""), file)
    return ballot


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of this server, or from no page at all; the form's key is checked besides."""
    place, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if place is not None:
        return place == "same-origin"
    return origin is None or (urlsplit(origin).netloc or None) == headers.get("host")


async def body_of(request: Request) -> bytes:
    """Return the body of a form, at most `BODY` bytes.

    Raises:
        GalleryError: it is longer (413), or does not arrive within `BODY_SECONDS` (408).
    """
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY:
                    raise GalleryError(f"A form has at most {BODY} bytes. Got more.", 413)
    except TimeoutError:
        sentence = f"A form must arrive within {BODY_SECONDS:g} s. Got {len(body)} bytes of it. Send it again."
        raise GalleryError(sentence, 408) from None
    return body


def _data(site: Site, ballot: Ballot) -> dict[str, Any]:
    """What the page's script needs: the pair, the pictures of the next, how far it is."""
    total, place = len(ballot.pairs), ballot.place
    return {
        "pair": _pair(ballot.current),
        "animated": ballot.current is not None and _animated(ballot, ballot.current),
        "next": _pair(ballot.following),
        "place": min(place + 1, total),
        "total": total,
        "votes": ballot.votes,
        "results": _results(site, ballot) if ballot.current is None else None,
    }


def _pair(pair: Pair | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    sides = [
        {"src": f"/vote/picture/{name}", "video": is_video(pair.samples[letter].file or "")}
        for name, letter in zip(pair.pictures, pair.sides(), strict=True)
    ]
    source = f"/vote/picture/{pair.source}" if pair.source is not None else None
    return {"name": pair.name, "prompt": pair.prompt, "source": source, "left": sides[0], "right": sides[1]}


def _animated(ballot: Ballot, pair: Pair) -> bool:
    """Whether pictures move that are no videos; the page starts those together."""
    return any(moves(ballot.columns[letter].source, pair.samples[letter].file) for letter in pair.sides())


def _results(site: Site, ballot: Ballot) -> str:
    return site.links.page("votes", a=ballot.columns["a"].key, b=ballot.columns["b"].key)


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
