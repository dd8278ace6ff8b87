"""Who votes on what, in which order, and which picture stands on the left: known to the server alone.

A ballot is one voter's way through the pairs of two sets of samples. Its order and its sides are drawn when it begins;
pages and pictures are found by random names that say nothing.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from diffrl.gallery.columns import Column
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.opponents import meetings
from diffrl.gallery.paths import present
from diffrl.gallery.records import Sample
from diffrl.gallery.votes import Choice, add_vote, side_of, void_vote

PAIRS = 1000
"""Pairs of a ballot; of more, so many are drawn."""
BALLOTS, HELD = 50, 20_000
"""Ballots, and pairs of all of them, that are held; the longest unused ballots go first."""
LONGEST_NAME = 80
Letter = Literal["a", "b"]
LEFT: tuple[Letter, Letter] = ("a", "b")


@dataclass(frozen=True)
class Pair:
    """Two pictures of one prompt.

    Args:
        name: random; votes name the pair so.
        prompt: its text.
        samples: of A and of B.
        left: which of them is shown on the left.
        pictures: random names of the left and the right picture.
        source: random name of the image that both edit; None of no edit.
    """

    name: str
    prompt: str
    samples: Mapping[Letter, Sample]
    left: Letter
    pictures: tuple[str, str]
    source: str | None = None

    @property
    def edited(self) -> Letter | None:
        """The one of which a copy of that image was kept."""
        return next((letter for letter in LEFT if self.samples[letter].source is not None), None)

    @property
    def right(self) -> Letter:
        """Which of them is shown on the right."""
        return "b" if self.left == "a" else "a"

    def sides(self) -> tuple[Letter, Letter]:
        """Left and right."""
        return (self.left, self.right)


@dataclass
class Ballot:
    """One voter's way through the pairs.

    Args:
        columns: A and B.
        pairs: in the order in which they are shown.
        voter: a name, or "".
        by: what made two samples a pair, in words.
        left_out: pairs of which a picture was not kept with its own pixels, was kept for its score, or is gone.
        drawn_of: of how many pairs these were drawn.
    """

    columns: Mapping[Letter, Column]
    pairs: list[Pair]
    voter: str
    by: str
    left_out: int = 0
    drawn_of: int = 0
    name: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    place: int = 0
    _history: list[tuple[int, str | None]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def current(self) -> Pair | None:
        """The pair to vote on; None after the last."""
        return self.pairs[self.place] if self.place < len(self.pairs) else None

    @property
    def following(self) -> Pair | None:
        """The pair after it."""
        return self.pairs[self.place + 1] if self.place + 1 < len(self.pairs) else None

    @property
    def votes(self) -> int:
        """How many were given and not taken back."""
        return sum(vote is not None for _, vote in self._history)

    def answer(self, pair: str, choice: str, file: Path) -> None:
        """Take a vote and go on. One for another pair than the current, of a double click, changes nothing.

        Args:
            pair: its name.
            choice: left, right, equal or skip.
            file: of the votes; skipping writes nothing.

        Raises:
            GalleryError: another choice, or the file cannot be written; the pair stays.
        """
        with self._lock:
            current = self.current
            if choice not in ("left", "right", "equal", "skip"):
                raise GalleryError(f"A vote is left, right, equal or skip. Got {choice!r}. Use the buttons.")
            if current is None or current.name != pair:
                return
            vote = None
            if choice != "skip":
                sides: Mapping[str, Choice] = {"left": current.left, "right": current.right, "equal": "tie"}
                a, b = (
                    side_of(self.columns[letter].source, self.columns[letter].state, self._fresh(current, letter))
                    for letter in LEFT
                )
                vote = add_vote(file, self.voter, self.session, a, b, current.left, sides[choice]).id
            self._history.append((self.place, vote))
            self.place += 1

    def undo(self, file: Path) -> None:
        """Take the last vote back, and what was skipped since, and show its pair again; without one, do nothing.

        Raises:
            GalleryError: the file cannot be written; the vote stands.
        """
        with self._lock:
            votes = [number for number, (_, vote) in enumerate(self._history) if vote is not None]
            if not votes:
                return
            place, vote = self._history[votes[-1]]
            void_vote(file, str(vote))
            del self._history[votes[-1] :]
            self.place = place

    def _fresh(self, pair: Pair, letter: Letter) -> Sample:
        """The sample with the scores that are known by now; as it was, if the folder has changed meanwhile."""
        column, known = self.columns[letter], pair.samples[letter]
        try:
            found = column.source.samples(column.state, [known.id])
        except GalleryError:
            return known
        return found[0] if found and (found[0].key, found[0].file) == (known.key, known.file) else known


class Ballots:
    """All ballots, and the pictures that they show.

    Args:
        draw: where chance comes from; the operating system's unless a test needs to know.
    """

    def __init__(self, draw: random.Random | None = None):
        self._draw = draw or secrets.SystemRandom()
        self._ballots: OrderedDict[str, Ballot] = OrderedDict()
        self._pictures: dict[str, tuple[Ballot, Pair, Letter]] = {}
        self._lock = threading.Lock()

    def begin(self, a: Column, b: Column, voter: str = "") -> Ballot:
        """A new ballot.

        Raises:
            GalleryError: A and B have no prompt in common, or no picture was kept of any.
        """
        columns: dict[Letter, Column] = {"a": a, "b": b}
        briefs, rows, shown, by = meetings(a, b)
        if a.key == b.key or not rows:
            raise GalleryError(
                f"A vote needs two sets of images with prompts in common. Got {a.label} and {b.label}, which "
                f"{'are the same' if a.key == b.key else 'have none'}. Choose others."
            )
        with self._lock:
            chosen = self._draw.sample(shown, min(PAIRS, len(shown)))
            lefts: list[Letter] = [LEFT[self._draw.random() < 0.5] for _ in chosen]
        found: dict[Letter, dict[int, Sample]] = {}
        for place, letter in enumerate(LEFT):
            ids = [number for row in chosen if (number := row.ids[place]) is not None]
            keys = {brief.id: brief.key for brief in briefs[place]}
            samples = columns[letter].source.samples(columns[letter].state, ids)
            # A folder may change between the two questions; and what a vote does not need is not held.
            found[letter] = {
                sample.id: replace(sample, key=keys[sample.id], metadata={})
                for sample in samples
                if sample.key == keys.get(sample.id) and sample.exact
            }
        there = {
            letter: present(
                column.source.path, [one.file for one in found[letter].values() if one.file], column.source.media
            )
            for letter, column in columns.items()
        }
        pairs = []
        for row, left in zip(chosen, lefts, strict=True):
            first, second = found["a"].get(row.ids[0] or 0), found["b"].get(row.ids[1] or 0)
            if first is not None and second is not None and first.file in there["a"] and second.file in there["b"]:
                names = (secrets.token_urlsafe(12), secrets.token_urlsafe(12))
                samples: dict[Letter, Sample] = {"a": first, "b": second}
                pair = Pair(secrets.token_urlsafe(9), row.prompt, samples, left, names)
                pairs.append(replace(pair, source=secrets.token_urlsafe(12)) if pair.edited else pair)
        if not pairs:
            raise GalleryError(
                "A vote needs images with their own pixels, kept whatever they scored. Of none of the "
                f"{len(rows)} pairs of {a.label} and {b.label} are both there. Choose others."
            )
        missing = len(rows) - len(shown) + len(chosen) - len(pairs)
        ballot = Ballot(columns, pairs, voter, by, missing, len(rows))
        self._keep(ballot)
        return ballot

    def _keep(self, ballot: Ballot) -> None:
        with self._lock:
            self._ballots[ballot.name] = ballot
            for pair in ballot.pairs:
                for name, letter in zip(pair.pictures, pair.sides(), strict=True):
                    self._pictures[name] = (ballot, pair, letter)
                if pair.source is not None and pair.edited is not None:
                    self._pictures[pair.source] = (ballot, pair, pair.edited)
            held = sum(len(one.pairs) for one in self._ballots.values())
            while len(self._ballots) > BALLOTS or held > HELD:
                _, gone = self._ballots.popitem(last=False)
                held -= len(gone.pairs)
                for pair in gone.pairs:
                    for name in (*pair.pictures, pair.source or ""):
                        self._pictures.pop(name, None)

    def get(self, name: str) -> Ballot:
        """A ballot by its name.

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

    def files(self, picture: str) -> tuple[Path, Path]:
        """The file of a picture, and of the one beside it; the same twice where that is missing.

        Raises:
            GalleryError: no such picture, or its file is gone (404).
        """
        with self._lock:
            if picture not in self._pictures:
                raise GalleryError("There is no such image.", 404)
            ballot, pair, letter = self._pictures[picture]
        if picture == pair.source:
            source = Path(ballot.columns[letter].source.media(pair.samples[letter].source or ""))
            return source, source
        other: Letter = "b" if letter == "a" else "a"
        here = Path(ballot.columns[letter].source.media(pair.samples[letter].file or ""))
        try:
            return here, Path(ballot.columns[other].source.media(pair.samples[other].file or ""))
        except GalleryError:
            return here, here


def voter_name(text: str) -> str:
    """A voter's name as it is kept.

    Raises:
        GalleryError: too long, or with characters that cannot be printed.
    """
    name = " ".join(text.split())
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise GalleryError(f"A voter's name has at most {LONGEST_NAME} printable characters. Got {len(name)}.")
    return name
