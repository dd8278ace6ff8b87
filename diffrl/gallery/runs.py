"""A run's store, read while the run may still write to it: connections last for one question and never lock."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.files import read_own
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.leaves import groups_with_trees, leaves_of
from diffrl.gallery.numbers import finite
from diffrl.gallery.paths import inside
from diffrl.gallery.records import Brief, Key, Sample, State
from diffrl.tracking.index import IMAGES, INDEX, connect, explained, notes_of, source_file, source_of
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.places import place
from diffrl.tracking.reward_rows import ROWS
from diffrl.tracking.rewards import REWARDS, lower_is_better
from diffrl.trees.record import TREES

MARKS = ("metrics.jsonl", INDEX, f"{INDEX}-wal", "summary.json", "log.txt", TREES)
"""Files whose change tells that a run has gone on."""
CHUNK = 500
NAMES_SOURCE = """instr(metadata, '"source"') AND json_valid(metadata)"""
SOURCE = f"CASE WHEN {NAMES_SOURCE} THEN json_extract(metadata, '$.source') END"
"""What a sample's prompt names as its source; most samples have none, and their metadata are not parsed for it."""


class RunSource:
    """The directory of a run."""

    kind = "run"

    def __init__(self, key: str, path: Path, title: str | None = None):
        self.key, self.path, self.title = key, path, title or path.name
        self._written, self._since = math.nan, -math.inf

    def states(self) -> list[State]:
        """Return stages and iterations that have samples."""
        with self.database() as database:
            rows = database.execute(
                "SELECT stage, iteration, count(*) FROM samples WHERE typeof(stage) = 'text' AND "
                "typeof(iteration) = 'integer' GROUP BY stage, iteration ORDER BY stage, iteration"
            )
            return [State(*row) for row in rows]

    def reward_names(self, state: State) -> list[str]:
        """Return "total" and the rewards of a state's first samples."""
        with self.database() as database:
            query = (
                f"SELECT DISTINCT name FROM {ROWS} WHERE sample_id IN "
                "(SELECT id FROM samples WHERE stage = ? AND iteration = ? LIMIT 50) ORDER BY name"
            )
            return ["total", *(str(name) for (name,) in database.execute(query, (state.stage, state.iteration)))]

    def lower_is_better(self, state: State) -> frozenset[str]:
        """Return those of which less is better as rewards.json tells, if it can be read."""
        try:
            return lower_is_better(self.read_json(REWARDS), state.stage)
        except GalleryError:
            return frozenset()

    def briefs(self, state: State, reward: str | None) -> list[Brief]:
        """Return all samples of a state, in the order of the index."""
        with self.database() as database:
            value, values = "NULL" if reward is None else "total", []
            if reward not in (None, "total"):
                value = f"(SELECT raw FROM {ROWS} WHERE sample_id = samples.id AND name = ?)"
                values = [reward]
            query = (
                f"SELECT id, prompt, seed, group_id, root, path, {value}, picture IS NOT NULL, {SOURCE}, "
                "exact, representative FROM samples WHERE stage = ? AND iteration = ? ORDER BY id"
            )
            rows = database.execute(query, (*values, state.stage, state.iteration))
            in_trees = groups_with_trees(self.path, state.iteration) if state.stage == "train" else frozenset[int]()
            return [
                Brief(
                    row[0],
                    _key(row[1:6]),
                    finite(row[6]),
                    bool(row[7]) or row[3] in in_trees,
                    row[8] and source_of({"source": row[8]}),
                    bool(row[7] and row[9]),  # leaves of trees are small ones
                    None if row[10] is None else bool(row[10]),
                )
                for row in rows
            ]

    def samples(self, state: State, ids: Sequence[int]) -> list[Sample]:
        """Return samples by their ids, those of training with their leaf."""
        samples: dict[int, Sample] = {}
        with self.database() as database:
            for start in range(0, len(ids), CHUNK):
                samples |= _samples(database, ids[start : start + CHUNK])
        grown = [self._grown(samples[number]) for number in ids if number in samples]
        return [replace(sample, source=self.source_of(sample.metadata)) for sample in grown]

    def source_of(self, metadata: Mapping[str, Any]) -> str | None:
        """Return the copy that was kept of the image that a sample or a tree is an edit of, relative to the run."""
        file = source_file(metadata)
        return file if file is not None and (self.path / file).is_file() else None

    def _grown(self, sample: Sample) -> Sample:
        """Return a training sample with its leaf, where its tree was kept: the image may lie there alone."""
        if sample.state.stage != "train":
            return sample
        _, _, group, root, path = sample.key
        leaf = leaves_of(self.path, sample.state.iteration, group).get((root, path))
        return sample if leaf is None else replace(sample, leaf=leaf, file=sample.file or leaf.file)

    def media(self, file: str) -> str:
        """Return the path of an image of a sample or of a tree."""
        return str(inside(self.path, file, [self.path / IMAGES, self.path / TREES]))

    def version(self) -> str:
        """Return the times of change of the files of `MARKS`."""
        return "-".join(f"{changed(self.path / name):x}" for name in MARKS)

    def unchanged_for(self, written: float) -> float:
        """Return the seconds since this process saw the time of the run's last change move; infinity before it does."""
        if written != self._written:
            self._since = -math.inf if math.isnan(self._written) else time.monotonic()
            self._written = written
        return time.monotonic() - self._since

    def metrics(self) -> list[dict[str, Any]]:
        """Return rows of metrics.jsonl; none before the first is written."""
        path = self.place("metrics.jsonl")
        return read_metrics(path) if path.exists() else []

    def place(self, name: str) -> Path:
        """Return a file of the run.

        Raises:
            GalleryError: it is a link out of the run's directory (503).
        """
        try:
            return place(self.path, name)
        except DiffrlError as error:
            raise GalleryError(str(error), 503) from error

    def read_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run, {} if it is not there (yet).

        Raises:
            GalleryError: it is no JSON object, or lies elsewhere.
        """
        path = self.place(name)
        try:
            data = json.loads(read_own(path))
            if not isinstance(data, dict):
                raise ValueError("it is no object")
            return data
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise GalleryError(f"{path} cannot be read: {error}.", 503) from error

    def read_text(self, name: str) -> str:
        """Return a text file of the run, "" if it is not there.

        Raises:
            GalleryError: it lies elsewhere, or cannot be read.
        """
        path = self.place(name)
        try:
            return read_own(path).decode(errors="replace") if path.is_file() else ""
        except OSError as error:
            raise GalleryError(f"{path} cannot be read: {error}.", 503) from error

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for one question.

        Raises:
            GalleryError: the index cannot be read (503).
        """
        try:
            with closing(connect(self.path, readonly=True)) as database, explained(self.path):
                yield database
        except GalleryError:
            raise
        except DiffrlError as error:
            raise GalleryError(str(error), 503) from error


def _samples(database: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Sample]:
    marks = ", ".join("?" * len(ids))
    rewards: dict[int, dict[str, float | None]] = {number: {} for number in ids}
    for number, name, raw in database.execute(
        f"SELECT sample_id, name, raw FROM {ROWS} WHERE sample_id IN ({marks}) ORDER BY name",
        list(ids),
    ):
        rewards[number][str(name)] = finite(raw)
    notes: dict[int, dict[str, str]] = {number: {} for number in ids}
    for number, name, note in notes_of(database, marks, ids):
        notes[number][name] = note
    rows = database.execute(
        "SELECT id, prompt, seed, group_id, root, path, stage, iteration, total, advantage, error, picture, metadata, "
        f"exact FROM samples WHERE id IN ({marks})",
        list(ids),
    )
    return {
        row[0]: Sample(
            id=row[0],
            key=_key(row[1:6]),
            state=State(row[6], row[7]),
            total=finite(row[8]),
            advantage=finite(row[9]),
            rewards=rewards[row[0]],
            error=None if row[10] is None else str(row[10]),
            notes=notes[row[0]],
            file=_file(row[11]),
            metadata=_object(row[12]),
            exact=_file(row[11]) is not None and bool(row[13]),
        )
        for row in rows
    }


def _key(row: Sequence[Any]) -> Key:
    """Return prompt, seed, group, root, path; SQLite keeps what it is given, whatever the column's type."""
    prompt, seed, group, root, path = row
    return str(prompt), _whole(seed), _whole(group), _whole(root), str(path)


def _file(value: Any) -> str | None:
    return value if isinstance(value, str) and "\0" not in value else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _object(text: str) -> dict[str, Any]:
    """Return metadata of a sample; {} where somebody else's writing is no JSON object."""
    try:
        data = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def mark(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file: its number, size and time of change; None if it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def changed(path: Path) -> int:
    """Return the nanoseconds since 1970 of a file's last change; 0 if it is missing, or empty as a reader's -wal is."""
    try:
        stat = path.stat()
    except OSError:
        return 0
    return stat.st_mtime_ns if stat.st_size else 0
