"""The file of blind votes: one JSON object a line, only ever added to.

    {"id", "time", "voter", "session", "prompt", "a": side, "b": side, "left": "a"|"b", "choice": "a"|"b"|"tie"}
    {"id", "time", "voids": id of a vote}                              what undoing it writes

A side is {"source", "path", "state", "sample", "picture", "rewards", "lower"}: the title and the absolute path of the
run or folder, the state ("eval-80"), the sample's key (prompt, seed, group, root, path), the picture relative to
`path`, every reward that was known when the vote was given, and the labels of those of which less is better (none in
files of an older gallery, which has no "lower").
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from diffrl.files import read_own
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.records import Key, Sample, Source, State

Choice = Literal["a", "b", "tie"]
_lock = threading.Lock()


@dataclass(frozen=True)
class Side:
    """One of the two pictures of a vote; see the file's layout above."""

    source: str
    path: str
    state: str
    sample: Key
    picture: str
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    lower: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
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
    left: Literal["a", "b"]
    choice: Choice

    def flipped(self) -> Vote:
        """The same vote with A and B exchanged."""
        other: dict[str, Any] = {"a": "b", "b": "a", "tie": "tie"}
        return Vote(
            self.id,
            self.time,
            self.voter,
            self.session,
            self.prompt,
            self.b,
            self.a,
            other[self.left],
            other[self.choice],
        )


@dataclass(frozen=True)
class Read:
    """What the file holds.

    Args:
        votes: that count, in their order.
        voided: how many were taken back.
        unreadable: lines that are none of the above, without a torn last one.
    """

    votes: Sequence[Vote] = ()
    voided: int = 0
    unreadable: int = 0


def side_of(source: Source, state: State, sample: Sample) -> Side:
    """A sample as a side of a vote."""
    rewards = dict(sample.rewards) if sample.total is None else {"total": sample.total, **sample.rewards}
    lower = tuple(sorted(source.lower_is_better(state)))
    return Side(source.title, home(source), state.key, sample.key, sample.file or "", rewards, lower)


def source_of(sources: Sequence[Source], side: Side) -> Source | None:
    """The source of the gallery that a side came from; None if it is not shown."""
    return next((source for source in sources if home(source) == side.path), None)


def home(source: Any) -> str:
    """The absolute path of a run or folder."""
    return str(Path(source.path).resolve())


def add_vote(path: Path, voter: str, session: str, a: Side, b: Side, left: Literal["a", "b"], choice: Choice) -> Vote:
    """Write a vote; returns it.

    Raises:
        GalleryError: the file cannot be written (503).
    """
    vote = Vote(uuid4().hex, now(), voter, session, a.sample[0], a, b, left, choice)
    _append(path, asdict(vote))
    return vote


def void_vote(path: Path, vote: str) -> None:
    """Take a vote back: a line that says so.

    Raises:
        GalleryError: the file cannot be written (503).
    """
    _append(path, {"id": uuid4().hex, "time": now(), "voids": vote})


def now() -> str:
    """UTC, to the second."""
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
    """All votes that count; none if there is no file yet.

    Raises:
        GalleryError: the file cannot be read as text (503); it is left as it is.
    """
    try:
        text = read_own(path).decode()
    except FileNotFoundError:
        return Read()
    except (OSError, UnicodeDecodeError) as error:
        raise GalleryError(
            f"The votes in {path} cannot be read: {error}. Nothing was changed in it. Mend it, or start with another "
            "--votes FILE.",
            503,
        ) from error
    *lines, last = text.split("\n")
    votes: dict[str, Vote] = {}
    voided, unreadable = 0, 0
    for line in [*lines, last] if _record(last) else lines:
        record = _record(line)
        if record is None:
            unreadable += bool(line.strip())
        elif "voids" in record:
            voided += votes.pop(str(record["voids"]), None) is not None
        elif (vote := _vote(record)) is not None:
            votes[vote.id] = vote
        else:
            unreadable += 1
    return Read(list(votes.values()), voided, unreadable)


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _vote(record: Mapping[str, Any]) -> Vote | None:
    """A vote, or None if a line is none."""
    names = ("id", "time", "voter", "session", "prompt")
    texts = [record.get(name) for name in names]
    a, b = _side(record.get("a")), _side(record.get("b"))
    left, choice = record.get("left"), record.get("choice")
    if a is None or b is None or not all(isinstance(text, str) for text in texts):
        return None
    if left not in ("a", "b") or choice not in ("a", "b", "tie"):
        return None
    name, time, voter, session, prompt = (str(text) for text in texts)
    return Vote(name, time, voter, session, prompt, a, b, left, choice)


def _side(record: Any) -> Side | None:
    if not isinstance(record, dict):
        return None
    texts = [record.get(name) for name in ("source", "path", "state", "picture")]
    sample, rewards = record.get("sample"), record.get("rewards")
    if not all(isinstance(text, str) for text in texts) or not isinstance(rewards, dict):
        return None
    if not isinstance(sample, list) or [type(part) for part in sample] != [str, int, int, int, str]:
        return None
    source, path, state, picture = (str(text) for text in texts)
    numbers = {str(name): finite(value) for name, value in rewards.items()}
    lower = record.get("lower")
    labels = tuple(str(label) for label in lower) if isinstance(lower, list) else ()
    return Side(source, path, state, tuple(sample), picture, numbers, labels)
