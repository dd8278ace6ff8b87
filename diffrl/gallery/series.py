"""metrics.jsonl by column, in memory: read once, and of a run that goes on only what is new."""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from diffrl.errors import DiffrlError
from diffrl.files import open_own
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.runs import RunSource
from diffrl.tracking.metrics import parse_row, read_metrics

Row = Mapping[str, Any]
EMPTY = "It has written no metrics yet."
INPUTS = ("prompts.", "model.path", "rewards.", "eval.rewards.")
"""What the names begin with of what a run trains on and is measured with."""
KEPT = 32
"""Runs whose columns stay in memory: about 10 MB each at 10,000 iterations."""
SEEN = 4096
"""Bytes at either end of what was read by which a file is known again: its number goes to others after it."""


@dataclass
class Column:
    """A metric of a run."""

    rows: array[int] = field(default_factory=lambda: array("l"))  # in which it stands, ascending
    values: array[float] = field(default_factory=lambda: array("d"))  # there; NaN where it is null, or no number

    def numbers(self) -> list[float]:
        """Return the values that are numbers."""
        return [value for value in self.values if value == value]


@dataclass(frozen=True)
class Track:
    """The metrics of a run."""

    key: str  # of the run in addresses
    title: str
    count: int = 0  # of rows
    columns: Mapping[str, Column] = field(default_factory=dict)  # by name, in the order in which they first appear
    problem: str = ""  # a sentence where there are none
    changes: Sequence[tuple[int, Sequence[str]]] = ()  # see `input_changes`

    @property
    def changed_rows(self) -> list[int]:
        """The rows after which the run went on with other inputs."""
        iterations = self.along("iteration") if self.changes else []
        return [iterations.index(after) for after, _ in self.changes if after in iterations]

    def along(self, name: str) -> list[float | None]:
        """Return a column as one entry a row, None where there is no number."""
        entries: list[float | None] = [None] * self.count
        column = self.columns.get(name, Column())
        for row, value in zip(column.rows, column.values, strict=True):
            entries[row] = value if value == value else None
        return entries

    def last(self, name: str) -> float | None:
        """Return the last number of a column."""
        numbers = self.columns[name].numbers() if name in self.columns else []
        return numbers[-1] if numbers else None


class _File:
    """A file of metrics as far as it was read."""

    def __init__(self) -> None:
        self.offset = self.count = 0
        self.columns: dict[str, Column] = {}
        self._head = self._tail = b""

    def is_still(self, stream: BinaryIO) -> bool:
        """Return whether a file begins with what was read: the same first bytes, the same before the offset."""
        head = stream.read(len(self._head))
        stream.seek(self.offset - len(self._tail))
        return head == self._head and stream.read(len(self._tail)) == self._tail

    def passed(self, content: bytes) -> None:
        """Remember how what was read begins and ends."""
        self.offset += len(content)
        self._head = (self._head + content[:SEEN])[:SEEN]
        self._tail = (self._tail + content[-SEEN:])[-SEEN:]

    def add(self, rows: Sequence[Row]) -> None:
        columns = self.columns
        for at, row in enumerate(rows, start=self.count):
            for name, value in row.items():
                column = columns.get(name)
                if column is None:
                    column = columns[name] = Column()
                column.rows.append(at)
                number = finite(value)
                column.values.append(math.nan if number is None else number)
        self.count += len(rows)


_FILES: OrderedDict[Path, _File] = OrderedDict()
_LOCK = threading.Lock()


def track_of(run: RunSource) -> Track:
    """Return what a run has measured so far; what cannot be read is a sentence."""
    try:
        path = run.place("metrics.jsonl")
        with _LOCK:
            if not path.is_file():
                _FILES.pop(path, None)
                return Track(run.key, run.title, problem=EMPTY)
            file = _read(path)
            columns = {name: Column(column.rows[:], column.values[:]) for name, column in file.columns.items()}
            count = file.count
        return Track(run.key, run.title, count, columns, "" if count else EMPTY, input_changes(run))
    except (DiffrlError, OSError) as error:
        return Track(run.key, run.title, problem=str(error))


def input_changes(run: RunSource) -> list[tuple[int, list[str]]]:
    """Return after which iterations a run went on with other inputs, and their names.

    They are in the summary of a run that has ended, before that among its resumptions.
    """
    try:
        summary, environment = run.read_json("summary.json"), run.read_json("environment.json")
    except GalleryError:  # the run's own page says so
        return []
    if summary:
        entries = _dicts(summary.get("input_changes"))
        changes = [(one.get("after_iteration"), one.get("inputs")) for one in entries]
    else:
        changed = _dicts([one.get("changed") for one in _dicts(environment.get("resumed"))])
        changes = [(one.get("after_iteration"), [name for name in one if name.startswith(INPUTS)]) for one in changed]
    return [
        (at, list(map(str, names))) for at, names in changes if type(at) is int and isinstance(names, list) and names
    ]


def _dicts(entries: object) -> list[dict[str, Any]]:
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _read(path: Path) -> _File:
    """Return the file, read on from where it was left; from its start where it was replaced or a line is no row."""
    file = _FILES.pop(path, None)
    with open_own(path) as stream:
        if file is None or not file.is_still(stream):
            file = _File()
        stream.seek(file.offset)
        content = stream.read()
    lines = [line + b"\n" for line in content.split(b"\n")[:-1]]  # what follows is being written
    rows = [parse_row(line) for line in lines]
    if rows and rows[-1] is None:  # cut short by a kill; the run drops it when it goes on
        rows.pop()
        lines.pop()
    whole = [row for row in rows if row is not None]
    if len(whole) < len(rows):
        read_metrics(path)  # tells which line it is
        raise DiffrlError(f"{path} changed while it was read. Load the page again.")
    file.add(whole)
    file.passed(content[: sum(map(len, lines))])
    _FILES[path] = file
    while len(_FILES) > KEPT:
        _FILES.popitem(last=False)
    return file
