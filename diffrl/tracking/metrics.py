"""metrics.jsonl: one JSON object a line, one line an append, safe against a kill at any moment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.files import LONGEST_LINE, flush, read_own, replacing
from reward_models.common.files import Closing

OUTSIDE = ("evaluation", "checkpoint", "trees")
"""Phases among `seconds` that are no part of training: looking at it and keeping it."""


class MetricsLog(Closing):
    """Appends rows to a metrics file.

    A row that was appended survives the death of the process; after `sync` it also survives a power cut. Call `sync`
    before a checkpoint is saved, so that the checkpoint never knows of rows that the file has lost.
    """

    def __init__(self, path: Path):
        """Open `path` for appending; a last line that a kill cut short is dropped first."""
        self.path = Path(path)
        if self.path.exists():
            _rewrite(self.path, lambda row: True)
        self._file = self._open()

    def in_place(self) -> bool:
        """Return whether the file that rows go to is still the one at its path."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def append(self, row: Mapping[str, float | int | str]) -> None:
        """Write one row and hand it to the operating system.

        NaN and infinities become null, since JSON has no word for them and the file has to be readable everywhere.
        One-element tensors and numpy scalars are written as their numbers.
        """
        line = json.dumps({key: _json_value(value) for key, value in row.items()}, allow_nan=False).encode() + b"\n"
        try:
            written = self._file.write(line)  # unbuffered: one system call, so rows of other writers never mix with it
        except OSError as error:
            raise DiffrlError(f"Cannot write to {self.path}: {error}.") from error
        if written != len(line):
            raise DiffrlError(f"Cannot write to {self.path}: the disk took {written} of {len(line)} bytes. Free space.")

    def sync(self) -> None:
        """Force all rows onto the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise DiffrlError(f"Cannot write to {self.path}: {error}.") from error

    def truncate_after(self, iteration: int) -> None:
        """Drop the rows whose "iteration" is greater than the given one; the file changes in one atomic step.

        A run that resumes from the checkpoint of `iteration` calls this, and its rows are neither doubled nor lost.
        Rows without an "iteration" stay.
        """
        self._file.close()
        _rewrite(self.path, lambda row: not (row.get("iteration") is not None and row["iteration"] > iteration))
        self._file = self._open()

    def close(self) -> None:
        """Force all rows onto the disk and close the file; closing twice does nothing."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def _open(self) -> Any:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.open("ab", buffering=0)
        except OSError as error:
            raise DiffrlError(f"Cannot open {self.path}: {error}.") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics file, null where a number was not finite.

    A last line that was cut short is left out: that is what a kill, or a writer at work, looks like.

    Raises:
        DiffrlError: the file is missing, or a line before the last is no JSON object; the message has its number.
    """
    return [row for _, row in _lines(Path(path))]


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Return each whole line, as it stands and parsed."""
    try:
        lines = read_own(path).split(b"\n")
    except OSError as error:
        raise DiffrlError(f"Cannot read the metrics in {path}: {error}.") from error
    if lines[-1] == b"":
        lines.pop()
    parsed = []
    for number, line in enumerate(lines, start=1):
        row = parse_row(line)
        if row is not None:
            parsed.append((line, row))
        elif number < len(lines):
            raise DiffrlError(
                f"{path}, line {number} is not a row of metrics: {line[:60].decode(errors='replace')!r}. "
                "Mend or remove that line."
            )
    return parsed


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Parse a line of a metrics file; None for what is no row: cut short, too long or deep, or no text."""
    try:
        row = json.loads(line) if len(line) <= LONGEST_LINE else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _rewrite(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Replace the file by the whole lines that `keep` wants, unless that changes nothing."""
    content = b"".join(line + b"\n" for line, row in _lines(path) if keep(row))
    if content == read_own(path):
        return
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
            flush(temporary)
    except OSError as error:
        raise DiffrlError(f"Cannot rewrite {path}: {error}.") from error


def _json_value(value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
