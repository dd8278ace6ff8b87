"""Blind votes: the file that holds them, and which two images stand beside each other.

The file has one JSON object a line and is only ever added to:

    {"id", "time", "voter", "session", "prompt", "a": side, "b": side, "left": "a"|"b", "choice": "a"|"b"|"tie"}
    {"id", "time", "voids": id of a vote}                              what undoing it writes

A side is {"source", "path", "state", "sample", "picture", "rewards", "lower"}: the title and the absolute path of the
run or folder, the state ("eval-80"), the sample's key (prompt, seed, group, root, path), the image relative to `path`,
every reward that was known when the vote was given, and the labels of those of which less is better (none in files of
an older gallery, which has no "lower").
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import uuid4

from pydantic import BeforeValidator, StrictInt, TypeAdapter

from diffrl.files import read_own
from diffrl.gallery.columns import Column, first_and_last, last_of_all
from diffrl.gallery.compare import FOLDER, Row, filter_by_images, match, representative_rows
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.paths import present
from diffrl.gallery.records import Brief, Sample, Source, State
from diffrl.gallery.site import Site

Letter = Literal["a", "b"]
Choice = Literal["a", "b", "tie"]
OTHER: Mapping[Any, Any] = {"a": "b", "b": "a", "tie": "tie"}
"""What a letter or a choice becomes where A and B are exchanged."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Side:
    """One of the two images of a vote; see the file's layout above."""

    source: str
    path: str
    state: str
    sample: tuple[str, StrictInt, StrictInt, StrictInt, str]
    picture: str
    rewards: Mapping[str, Annotated[float | None, BeforeValidator(finite)]] = field(default_factory=dict)
    lower: tuple[str, ...] = ()

    @property
    def samples(self) -> tuple[str, str]:
        """The set of samples that it belongs to."""
        return (self.path, self.state)


@dataclass(frozen=True)
class Vote:
    """One vote; see the file's layout above."""

    id: str
    time: str
    voter: str
    session: str
    prompt: str
    a: Side
    b: Side
    left: Letter
    choice: Choice

    def flipped(self) -> Vote:
        """Return the same vote with A and B exchanged."""
        return replace(self, a=self.b, b=self.a, left=OTHER[self.left], choice=OTHER[self.choice])


VOTE = TypeAdapter(Vote)


@dataclass(frozen=True)
class Read:
    """What the file holds."""

    votes: Sequence[Vote] = ()  # that count, in their order
    voided: int = 0  # how many were taken back
    unreadable: int = 0  # lines that are none of the above, without a torn last one


def side_of(source: Source, state: State, sample: Sample) -> Side:
    """Return a sample as a side of a vote."""
    rewards = dict(sample.rewards) if sample.total is None else {"total": sample.total, **sample.rewards}
    lower = tuple(sorted(source.lower_is_better(state)))
    return Side(source.title, home(source), state.key, sample.key, sample.file or "", rewards, lower)


def source_of(sources: Sequence[Source], side: Side) -> Source | None:
    """Return the source of the gallery that a side came from; None if it is not shown."""
    return next((source for source in sources if home(source) == side.path), None)


def home(source: Any) -> str:
    """Return the absolute path of a run or folder."""
    return str(Path(source.path).resolve())


def add_vote(path: Path, voter: str, session: str, a: Side, b: Side, left: Letter, choice: Choice) -> Vote:
    """Write a vote and return it.

    Raises:
        GalleryError: the file cannot be written (503).
    """
    vote = Vote(uuid4().hex, _now(), voter, session, a.sample[0], a, b, left, choice)
    _append(path, asdict(vote))
    return vote


def void_vote(path: Path, vote: str) -> None:
    """Take a vote back: write a line that says so.

    Raises:
        GalleryError: the file cannot be written (503).
    """
    _append(path, {"id": uuid4().hex, "time": _now(), "voids": vote})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line. A torn last line, of a machine that went down, keeps a line of its own."""
    line = json.dumps(record, ensure_ascii=True, allow_nan=False, default=str) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock, path.open("ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another gallery may write to the same file
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            try:
                if file.write(line.encode()) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(file.fileno(), size)  # a full disk takes a part of it
                raise
    except OSError as error:
        raise GalleryError(
            f"The vote could not be written to {path}: {error.strerror}. It is not counted. Start the gallery with "
            "--votes FILE at a place that can be written to.",
            503,
        ) from error


def read_votes(path: Path) -> Read:
    """Read all votes that count; none if there is no file yet.

    Raises:
        GalleryError: the file cannot be read as text (503); it is left as it is.
    """
    try:
        lines = read_own(path).decode().split("\n")
    except FileNotFoundError:
        return Read()
    except (OSError, UnicodeDecodeError) as error:
        raise GalleryError(
            f"The votes in {path} cannot be read: {error}. Nothing was changed in it. Mend it, or start with another "
            "--votes FILE.",
            503,
        ) from error
    votes: dict[str, Vote] = {}
    voided = unreadable = 0
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            unreadable += bool(line.strip()) and number < len(lines)
            continue
        if isinstance(record, dict) and "voids" in record:
            voided += votes.pop(str(record["voids"]), None) is not None
            continue
        try:
            vote = VOTE.validate_python(record)
            votes[vote.id] = vote
        except ValueError:
            unreadable += 1
    return Read(list(votes.values()), voided, unreadable)


class Pairing(NamedTuple):
    """Samples of A and B beside each other."""

    briefs: list[list[Brief]]  # of A and of B
    rows: list[Row]  # those that both have
    # those of them that can be judged: both images were kept whatever they scored, with their own pixels, as far as
    # the index says
    shown: list[Row]


def pairing(a: Column, b: Column) -> Pairing:
    """Put the samples of two sets beside each other.

    Raises:
        GalleryError: one of them cannot be read.
    """
    return _paired(a, b, [_briefs(a), _briefs(b)])


def exact_samples(column: Column, briefs: Sequence[Brief], ids: Sequence[int]) -> dict[int, Sample]:
    """Read samples whose own pixels are there, without what a vote does not need."""
    keys = {brief.id: brief.key for brief in briefs}
    samples = [
        replace(sample, metadata={})
        for sample in column.source.samples(column.state, ids)
        if sample.key == keys.get(sample.id) and sample.exact
    ]
    there = present(column.source.path, [one.file for one in samples if one.file], column.source.media)
    return {sample.id: sample for sample in samples if sample.file in there}


def usual_pair(site: Site, run: str = "") -> tuple[Column, Column]:
    """Return the first two sets that have images of one prompt; the first two, whatever they have, if no others do.

    Raises:
        GalleryError: there are no two.
    """
    first = None
    known: dict[str, list[Brief]] = {}
    for pair in _candidates(site, run):
        first = first or pair
        try:
            for one in pair:
                if one.key not in known:
                    known[one.key] = _briefs(one)
            briefs = [known[one.key] for one in pair]
            if _share_prompts(pair, briefs) and _paired(*pair, briefs).shown:
                return pair
        except GalleryError:  # a store that cannot be read; its own pages say so
            continue
    if first is None:
        raise GalleryError(
            "A vote compares two sets of images. There are not two of them here. Wait for the next evaluation, or "
            "show two folders."
        )
    return first


def _candidates(site: Site, run: str) -> Iterator[tuple[Column, Column]]:
    """Yield the first and last evaluation of the run, or of each; then the last of one source and of another."""
    for source in [site.source(run)] if run else site.runs:
        try:
            columns = first_and_last(source).columns
        except GalleryError:
            if run:
                raise
            continue
        if len(columns) > 1:
            yield columns[0], columns[-1]
    last = [] if run else last_of_all(site.sources).columns
    for number, b in enumerate(last):
        for a in last[:number]:
            yield a, b


def _briefs(column: Column) -> list[Brief]:
    return column.source.briefs(column.state, None)


def _share_prompts(pair: Sequence[Column], briefs: Sequence[Sequence[Brief]]) -> bool:
    """Return whether two have a prompt in common, without which samples of runs are no pairs: quick, for many runs."""
    prompts = ({brief.key[0] for brief in column} for column in briefs)
    return FOLDER in [column.stream for column in pair] or bool(set.intersection(*prompts))


def _paired(a: Column, b: Column, briefs: list[list[Brief]]) -> Pairing:
    rows = [row for row in match(briefs, [a.stream, b.stream]).rows if None not in row.ids]
    exact = [[brief._replace(has_image=brief.has_image and brief.exact) for brief in column] for column in briefs]
    return Pairing(briefs, rows, representative_rows(filter_by_images(rows, exact), briefs))
