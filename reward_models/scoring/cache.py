"""Scores that are known already: an SQLite file from a sample's key to its score. Failures are never kept."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reward_models.common.errors import RewardError
from reward_models.common.files import Closing
from reward_models.common.stores import describe_failure, open_to_write, require_tables, transaction

SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE scores (
    key TEXT PRIMARY KEY,       -- see reward_models/scoring/identity.py
    reward TEXT NOT NULL,       -- the scorer's name and version, for whoever looks into the file
    raw REAL NOT NULL,
    parts TEXT NOT NULL,        -- JSON object; null where a part is unknown
    note TEXT                   -- the scorer's reason in words
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Score:
    """One reward of one sample."""

    raw: float  # NaN where it failed
    parts: Mapping[str, float] = field(default_factory=dict)  # named components; NaN where unknown
    error: str | None = None  # why it failed, or None
    note: str | None = None  # the scorer's reason in words, if it gave one

    @property
    def ok(self) -> bool:
        """Whether there is a score."""
        return self.error is None


def failure(error: str) -> Score:
    """Return the score of a sample that has none."""
    return Score(math.nan, {}, error)


def default_path() -> Path:
    """Return ~/.cache/diffrl/scores.sqlite, or below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "diffrl" / "scores.sqlite"


class ScoreCache(Closing):
    """The file. Several processes and threads may use it at once; `None` keeps scores in memory, for one run only."""

    def __init__(self, path: Path | None):
        """Open it, making it if there is none.

        Raises:
            RewardError: it cannot be made, is no cache, or is one of another version.
        """
        self.path = path
        self._lock = threading.Lock()
        with self._explained():
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._database = open_to_write(path, check_same_thread=False)
            try:
                with transaction(self._database):
                    self._prepare()
            except BaseException:
                self._database.close()
                raise

    def _prepare(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == 0 and tables == 0:
            self._database.execute(SCHEMA)
            self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        else:
            require_tables(self._database)
        if version not in (0, SCHEMA_VERSION) or version == 0 and tables:
            raise RewardError(
                f"{self.path} is no cache of scores that this version reads. Give another file to --cache, or "
                "--no-cache."
            )

    def get(self, key: str) -> Score | None:
        """Return a known score; a row that holds none, as after damage, is not known."""
        with self._lock, self._explained():
            row = self._database.execute("SELECT raw, parts, note FROM scores WHERE key = ?", (key,)).fetchone()
        return None if row is None else _score(*row)

    def put(self, reward: str, scores: Sequence[tuple[str, Score]]) -> None:
        """Keep scores by key, all or none; those that failed are left out."""
        rows = [(key, reward, score.raw, _json(score.parts), score.note) for key, score in scores if score.ok]
        with self._lock, self._explained(), transaction(self._database):
            self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._database.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = describe_failure(error) if isinstance(error, sqlite3.Error) else error
            raise RewardError(
                f"The cache of scores {self.path} cannot be used: {why}. Give another file to --cache, or --no-cache."
            ) from error


def _score(raw: Any, parts: Any, note: Any) -> Score | None:
    """Return the score of a row; None of a damaged one. SQLite keeps what it is given, whatever the column's type."""
    try:
        named = {name: math.nan if value is None else value for name, value in json.loads(parts).items()}
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None
    numbers = all(type(value) in (int, float) for value in (raw, *named.values()))
    return Score(raw, named, note=note) if numbers and isinstance(note, str | None) and math.isfinite(raw) else None


def _json(parts: Mapping[str, float]) -> str:
    return json.dumps({name: value if math.isfinite(value) else None for name, value in parts.items()})
