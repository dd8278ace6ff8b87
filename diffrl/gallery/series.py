"""metrics.jsonl by column, in memory: read once, and of a run that goes on only what is new."""

from __future__ import annotations

import json
import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.gallery.runs import RunSource
from diffrl.tracking.metrics import read_metrics

Row = Mapping[str, Any]
EMPTY = "It has written no metrics yet."
KEPT = 32
"""Runs whose columns stay in memory: about 10 MB each at 10,000 iterations."""


@dataclass
class Column:
    """A metric of a run.

    Args:
        rows: in which it stands, ascending.
        values: there; NaN where it is null, or no number.
    """

    rows: array[int] = field(default_factory=lambda: array("l"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def numbers(self) -> list[float]:
        """The values that are numbers."""
        return [value for value in self.values if value == value]


@dataclass(frozen=True)
class Track:
    """The metrics of a run.

    Args:
        key: of the run in addresses.
        title: of the run.
        count: of rows.
        columns: by name, in the order in which they first appear.
        problem: a sentence where there are none.
    """

    key: str
    title: str
    count: int = 0
    columns: Mapping[str, Column] = field(default_factory=dict)
    problem: str = ""

    def along(self, name: str) -> list[float | None]:
        """A column as one entry a row, None where there is no number."""
        found: list[float | None] = [None] * self.count
        column = self.columns.get(name, Column())
        for row, value in zip(column.rows, column.values, strict=True):
            found[row] = value if value == value else None
        return found

    def last(self, name: str) -> float | None:
        """The last number of a column."""
        numbers = self.columns[name].numbers() if name in self.columns else []
        return numbers[-1] if numbers else None


class _File:
    """A file of metrics as far as it was read."""

    def __init__(self, number: int):
        self.number, self.offset, self.count = number, 0, 0
        self.columns: dict[str, Column] = {}

    def add(self, rows: Sequence[Row]) -> None:
        columns = self.columns
        for place, row in enumerate(rows, start=self.count):
            for name, value in row.items():
                column = columns.get(name)
                if column is None:
                    column = columns[name] = Column()
                column.rows.append(place)
                column.values.append(nan_or(value))
        self.count += len(rows)


_FILES: OrderedDict[Path, _File] = OrderedDict()
_LOCK = threading.Lock()


def track_of(run: RunSource) -> Track:
    """What a run has measured so far; what cannot be read is a sentence."""
    path = run.path / "metrics.jsonl"
    try:
        with _LOCK:
            if not path.is_file():
                _FILES.pop(path, None)
                return Track(run.key, run.title, problem=EMPTY)
            file = _read(path)
            columns = {name: Column(column.rows[:], column.values[:]) for name, column in file.columns.items()}
            return Track(run.key, run.title, file.count, columns, "" if file.count else EMPTY)
    except (DiffrlError, OSError) as error:
        return Track(run.key, run.title, problem=str(error))


def track_from(key: str, title: str, rows: Sequence[Row]) -> Track:
    """A track of rows that are at hand."""
    file = _File(0)
    file.add(rows)
    return Track(key, title, file.count, file.columns)


def _read(path: Path) -> _File:
    """The file, read on from where it was left; from its start where it was replaced or a line is no row."""
    stat = path.stat()
    file = _FILES.pop(path, None)
    if file is None or file.number != stat.st_ino or file.offset > stat.st_size:
        file = _File(stat.st_ino)
    with path.open("rb") as stream:
        stream.seek(file.offset)
        content = stream.read()
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)  # what follows is being written
    rows = [row_of(line) for line in lines]
    if rows and rows[-1] is None:  # cut short by a kill; the run drops it when it goes on
        rows.pop()
        lines.pop()
    whole = [row for row in rows if row is not None]
    if len(whole) < len(rows):
        read_metrics(path)  # tells which line it is
        raise DiffrlError(f"{path} changed while it was read. Load the page again.")
    file.add(whole)
    file.offset += sum(map(len, lines))
    _FILES[path] = file
    while len(_FILES) > KEPT:
        _FILES.popitem(last=False)
    return file


def row_of(line: bytes) -> Row | None:
    """A row of metrics, or None for a line that is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def number(value: object) -> float | None:
    """A finite number, or None for all else."""
    found = nan_or(value)
    return found if found == found else None


def nan_or(value: object) -> float:
    """A finite number, or NaN for all else."""
    if type(value) is float:
        return value if math.isfinite(value) else math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        found = float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.nan
    return found if math.isfinite(found) else math.nan
