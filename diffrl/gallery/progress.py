"""How far a run is, and what its held-out rewards did: read from its small files, and cheap for long runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.runs import MARKS, RunSource

HELD_OUT = "held_out/"
POINTS = 200
"""Training rows that are read of a long run: as many as a small curve can show."""
FRESH = 120
"""Seconds after its last write in which a run counts as running, where its lock cannot be seen."""
ALARM = re.compile(r"\(guards\.|reward hacking|The run stops|sentinel|no usable reward")


@dataclass(frozen=True)
class Change:
    """A held-out reward in the first and in the last evaluation; None where it failed."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """After less before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Progress:
    """A run's course.

    Args:
        state: "finished", "running" or "stopped".
        done: iterations.
        total: iterations that were asked for; None if config.yaml does not tell.
        written: seconds since 1970 of the last change.
        evaluations: iteration and held-out values by reward name.
        training: iteration and mean training reward, thinned to `POINTS`.
        broken: lines of metrics.jsonl that are no rows, apart from a last one that is being written.
    """

    state: str
    done: int
    total: int | None
    written: float
    evaluations: Sequence[tuple[int, Mapping[str, float | None]]]
    training: Sequence[tuple[int, float]]
    broken: int

    @property
    def changes(self) -> list[Change]:
        """Every held-out reward, whole ones and parts, the first evaluation against the last."""
        if not self.evaluations:
            return []
        first, last = self.evaluations[0][1], self.evaluations[-1][1]
        return [Change(name, first.get(name), last.get(name)) for name in dict.fromkeys([*first, *last])]

    @property
    def headline(self) -> list[Change]:
        """The held-out rewards without their parts."""
        return [change for change in self.changes if "/" not in change.name]


def progress(run: RunSource) -> Progress:
    """How far a run is.

    Raises:
        GalleryError: a file of it cannot be read (503).
    """
    evaluations, training, done, broken = read_rows(run.path / "metrics.jsonl")
    summary = run.path / "summary.json"
    written = max((_changed(run.path / name) for name in MARKS), default=0.0)
    running = is_locked(run.path / ".lock") or 0 <= time.time() - written < FRESH
    state = (
        "finished" if summary.is_file() and not is_locked(run.path / ".lock") else "running" if running else "stopped"
    )
    return Progress(state, done, asked(run), written, evaluations, training, broken)


def read_rows(
    path: Path,
) -> tuple[list[tuple[int, dict[str, float | None]]], list[tuple[int, float]], int, int]:
    """Evaluations, training rewards, the last iteration and the count of broken lines; parses only what is shown.

    Raises:
        GalleryError: the file cannot be read (503).
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise GalleryError(f"The metrics in {path} cannot be read: {error}.", 503) from error
    lines, unfinished = lines[:-1], lines[-1:]
    marked = {place for place, line in enumerate(lines) if b'"held_out/' in line}
    thinned = set(range(0, len(lines), max(1, len(lines) // POINTS))) | {len(lines) - 1}
    evaluations: list[tuple[int, dict[str, float | None]]] = []
    training: list[tuple[int, float]] = []
    done = broken = 0
    for place in sorted(marked | thinned & set(range(len(lines)))):
        row = _row(lines[place])
        if row is None:
            broken += 1
            continue
        done = max(done, row["iteration"])
        held = {name.removeprefix(HELD_OUT): _number(value) for name, value in row.items() if name.startswith(HELD_OUT)}
        if held:
            evaluations.append((row["iteration"], held))
        if (mean := _number(row.get("reward/mean"))) is not None and place in thinned:
            training.append((row["iteration"], mean))
    if unfinished and (row := _row(unfinished[0])):
        done = max(done, row["iteration"])
    return evaluations, training, done, broken


def first_rewards(run: RunSource) -> list[str]:
    """Names of the held-out rewards without parts, in their order, from the first evaluation alone."""
    path = run.path / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            line = next((line for line in file if b'"held_out/' in line), b"")
    except OSError:
        return []
    names = (name.removeprefix(HELD_OUT) for name in _row(line) or {} if name.startswith(HELD_OUT))
    return [name for name in names if "/" not in name]


def asked(run: RunSource) -> int | None:
    """Iterations that the configuration asks for; None where it does not tell."""
    import yaml

    from reward_models.yaml12 import Loader

    try:
        config = yaml.load(run.read_text("config.yaml"), Loader)  # noqa: S506 - a SafeLoader
        iterations = config["run"]["iterations"]
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError, RecursionError):
        return None
    return iterations if isinstance(iterations, int) and not isinstance(iterations, bool) else None


def said(run: RunSource) -> tuple[list[tuple[str, int]], list[str]]:
    """log.txt: alarms of guards and sentinel with how often each came, the last first; and the other lines."""
    lines = [line.strip() for line in run.read_text("log.txt").splitlines() if line.strip()]
    counts = Counter(line for line in reversed(lines) if ALARM.search(line))  # keeps the order of first sight
    return list(counts.items()), [line for line in lines if not ALARM.search(line)]


def is_locked(lock: Path) -> bool:
    """Whether a process of this machine trains there. Only looks: a lock of our own could keep a run from starting."""
    try:
        number = str(lock.stat().st_ino)
        held = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return any(
        "FLOCK" in line and line.split()[5].rpartition(":")[2] == number for line in held if len(line.split()) > 5
    )


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("iteration"), int) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and abs(value) < float("inf") else None


def _changed(path: Path) -> float:
    """When a file was written; 0 if it is not there, or empty as the -wal file is that readers make."""
    try:
        stat = os.stat(path)
    except OSError:
        return 0.0
    return stat.st_mtime if stat.st_size else 0.0
