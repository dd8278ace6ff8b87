"""The page that takes blind votes, one pair at a time: who votes on what, in which order, and what stands on the left.

A ballot is one voter's way through the pairs of two sets of samples. Its order and its sides are chosen by chance when
it begins and are known to the server alone: addresses of images name the ballot, the pair and the side of the screen.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from diffrl.gallery.columns import Column, choose, named
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.forms import form_of
from diffrl.gallery.query import Query
from diffrl.gallery.records import Sample
from diffrl.gallery.site import Site
from diffrl.gallery.thumbnails import MISSING, blind_image, moves, part, sign
from diffrl.gallery.votes import OTHER, Choice, Letter, add_vote, exact_samples, pairing, side_of, usual_pair, void_vote

PAIRS = 1000
"""Pairs of a ballot; of more, so many are drawn."""
HELD = 20_000
"""Pairs of all ballots that are held; the longest unused ballots go first."""
LONGEST_NAME = 80
LETTERS: tuple[Letter, Letter] = ("a", "b")


@dataclass(frozen=True)
class Pair:
    """Two images of one prompt."""

    prompt: str
    samples: Mapping[Letter, Sample]  # of A and of B
    left: Letter  # which of them is shown on the left

    @property
    def sides(self) -> dict[str, Letter]:
        """Which of them is shown where."""
        return {"left": self.left, "right": OTHER[self.left]}

    @property
    def edited(self) -> Letter | None:
        """The one of which a copy of the image that both edit was kept."""
        return next((letter for letter in LETTERS if self.samples[letter].source is not None), None)


@dataclass
class Ballot:
    """One voter's way through the pairs."""

    columns: Mapping[Letter, Column]  # A and B
    pairs: list[Pair]  # in the order in which they are shown
    voter: str  # a name, or ""
    left_out: int = 0  # pairs of which an image was not kept with its own pixels, was kept for its score, or is gone
    sampled_of: int = 0  # of how many pairs these were sampled
    name: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    _votes: list[str | None] = field(default_factory=list)  # of each pair so far the vote's id; None of a skipped one
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def number(self) -> int:
        """Number of the pair to vote on, from 0; the number of pairs after the last."""
        return len(self._votes)

    @property
    def votes(self) -> int:
        """How many were given and not taken back."""
        return sum(vote is not None for vote in self._votes)

    def pair(self, number: int) -> Pair | None:
        """Return a pair; None after the last."""
        return self.pairs[number] if 0 <= number < len(self.pairs) else None

    def answer(self, number: str, choice: str, file: Path) -> None:
        """Take a vote and go on. One for another pair than the current, of a double click, changes nothing.

        Raises:
            GalleryError: another choice, or the file cannot be written; the pair stays.
        """
        with self._lock:
            pair = self.pair(self.number)
            if choice not in ("left", "right", "equal", "skip"):
                raise GalleryError(f"A vote is left, right, equal or skip. Got {choice!r}. Use the buttons.")
            if pair is None or number != str(self.number):
                return
            vote = None
            if choice != "skip":
                meant: Choice = "tie" if choice == "equal" else pair.sides[choice]
                a, b = (side_of(one.source, one.state, pair.samples[letter]) for letter, one in self.columns.items())
                vote = add_vote(file, self.voter, self.session, a, b, pair.left, meant).id
            self._votes.append(vote)

    def undo(self, file: Path) -> None:
        """Take the last vote back, and what was skipped since, and show its pair again; without one, do nothing.

        Raises:
            GalleryError: the file cannot be written; the vote stands.
        """
        with self._lock:
            last = max((number for number, vote in enumerate(self._votes) if vote is not None), default=None)
            if last is not None:
                void_vote(file, str(self._votes[last]))
                del self._votes[last:]

    def images(self, number: int, side: str) -> tuple[Path, Path]:
        """Return the file of an image, and of the one beside it; the same twice where that is missing.

        Raises:
            GalleryError: no such image, or its file is gone (404).
        """
        pair = self.pair(number)
        letter = pair and (pair.edited if side == "source" else pair.sides.get(side))
        if pair is None or letter is None:
            raise GalleryError("There is no such image.", 404)
        sample, source = pair.samples[letter], self.columns[letter].source
        if side == "source":
            edited = Path(source.media(sample.source or ""))
            return edited, edited
        image, other = Path(source.media(sample.file or "")), OTHER[letter]
        try:
            return image, Path(self.columns[other].source.media(pair.samples[other].file or ""))
        except GalleryError:
            return image, image


class Ballots:
    """All ballots."""

    def __init__(self, chance: random.Random | None = None):
        self._chance = chance or secrets.SystemRandom()
        self._ballots: OrderedDict[str, Ballot] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, a: Column, b: Column, voter: str = "") -> Ballot:
        """Begin a ballot.

        Raises:
            GalleryError: A and B have no prompt in common, or no image was kept of any.
        """
        briefs, rows, shown = pairing(a, b)
        if a.key == b.key or not rows:
            raise GalleryError(
                f"A vote needs two sets of images with prompts in common. Got {a.label} and {b.label}, which "
                f"{'are the same' if a.key == b.key else 'have none'}. Choose others."
            )
        with self._lock:
            chosen = self._chance.sample(shown, min(PAIRS, len(shown)))
            lefts = [LETTERS[self._chance.random() < 0.5] for _ in chosen]
        first, second = (
            exact_samples(column, briefs[side], [number for row in chosen if (number := row.ids[side]) is not None])
            for side, column in enumerate((a, b))
        )
        pairs = [
            Pair(row.prompt, {"a": first[row.ids[0]], "b": second[row.ids[1]]}, left)
            for row, left in zip(chosen, lefts, strict=True)
            if row.ids[0] in first and row.ids[1] in second
        ]
        if not pairs:
            raise GalleryError(
                "A vote needs images with their own pixels, kept whatever they scored. Of none of the "
                f"{len(rows)} pairs of {a.label} and {b.label} are both there. Choose others."
            )
        left_out = len(rows) - len(shown) + len(chosen) - len(pairs)
        ballot = Ballot({"a": a, "b": b}, pairs, voter, left_out, sampled_of=len(rows))
        with self._lock:
            self._ballots[ballot.name] = ballot
            while sum(len(one.pairs) for one in self._ballots.values()) > HELD:
                self._ballots.popitem(last=False)
        return ballot

    def get(self, name: str) -> Ballot:
        """Return a ballot by its name.

        Raises:
            GalleryError: there is none (404).
        """
        with self._lock:
            if name not in self._ballots:
                raise GalleryError(
                    "This vote is over: the gallery was restarted, or too many others were begun since. What was voted "
                    "is kept. Begin a new one.",
                    404,
                )
            self._ballots.move_to_end(name)
            return self._ballots[name]


def add_routes(app: FastAPI, site: Site) -> None:
    """Add the routes that take votes and show images without their names.

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
            ballot = ballots.begin(*chosen_pair(site, query), voter_name(query.text("voter")))
            return RedirectResponse(site.links.page("vote", session=ballot.name), 303)
        ballot = ballots.get(query.text("session"))
        if ballot.number == len(ballot.pairs) or query.text("results"):
            keys = {letter: column.key for letter, column in ballot.columns.items()}
            return RedirectResponse(site.links.page("votes", **keys), 303)
        return Response(vote_page(site, ballot), media_type="text/html; charset=utf-8")

    def take(fields: Mapping[str, str]) -> Ballot:
        ballot, file = ballots.get(fields.get("session", "")), Path(site.options["votes"])
        if fields.get("key") != ballot.key:
            raise GalleryError("A vote needs the key of its page. Got another. Reload the page.", 403)
        if fields.get("choice") == "undo":
            ballot.undo(file)
        else:
            ballot.answer(fields.get("pair", ""), fields.get("choice", ""), file)
        return ballot

    async def post(request: Request) -> Response:
        ballot = await run_in_threadpool(take, await form_of(request))
        return RedirectResponse(site.links.page("vote", session=ballot.name), 303)

    def image(session: str, number: int, side: str, request: Request) -> Response:
        try:
            data, kind = blind_image(*ballots.get(session).images(number, side))
        except GalleryError as error:
            words = sign("too large") if error.status == 413 else MISSING
            return Response(words, error.status, media_type="image/svg+xml")
        data, status, headers = part(data, request.headers.get("range"))
        return Response(data, status, {"Cache-Control": "private, max-age=600", **headers}, media_type=kind)

    app.add_api_route("/vote", show, methods=["GET"], response_model=None)
    app.add_api_route("/vote", post, methods=["POST"], response_model=None)
    app.add_api_route("/vote/image/{session}/{number}/{side}", image, methods=["GET"], response_model=None)


def chosen_pair(site: Site, query: Query) -> tuple[Column, Column]:
    """Return A and B: those of the address, else the usual ones of its run, or of the gallery.

    Raises:
        GalleryError: there are no two.
    """
    keys = [query.text("a"), query.text("b")]
    runs = list(dict.fromkeys(query.all("run")))
    if len(runs) > 1 and not any(keys):
        columns = choose(site, query).columns
        if len(columns) < 2:
            raise GalleryError("A vote compares two sets of images. Of these runs not two have any. Choose others.")
        return columns[0], columns[1]
    if not any(keys):
        return usual_pair(site, query.text("run"))
    if not all(keys):
        raise GalleryError("A vote compares two states. Got one. Give both, a and b, or neither.")
    a, b = named([site.state(key) for key in keys])
    return a, b


def voter_name(text: str) -> str:
    """Return a voter's name as it is kept.

    Raises:
        GalleryError: too long, or with characters that cannot be printed.
    """
    name = " ".join(text.split())
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise GalleryError(f"A voter's name has at most {LONGEST_NAME} printable characters. Got {len(name)}.")
    return name


def vote_page(site: Site, ballot: Ballot) -> str:
    """Render the page of a ballot's current pair; the images of the next one are fetched with it."""
    pair, notes = ballot.pairs[ballot.number], []
    if ballot.sampled_of > len(ballot.pairs) + ballot.left_out:
        notes.append(f"{len(ballot.pairs)} of {ballot.sampled_of} pairs, chosen at random.")
    if ballot.left_out:
        are = "pair is" if ballot.left_out == 1 else "pairs are"
        notes.append(f"{ballot.left_out} {are} left out: an image was not kept, or is gone.")
    # Images that move and are no videos are started together by the page.
    animated = any(moves(ballot.columns[letter].source, pair.samples[letter].file) for letter in LETTERS)
    following = ballot.pair(ballot.number + 1)
    return site.render("vote.html", ballot=ballot, pair=pair, following=following, animated=animated, notes=notes)
