"""Rewards in the index of samples: a value that several names share, "shapes/colour" and "shapes_strict/colour", once.

rewards       sample_id, names, raw     one row a value
reward_names  number, name              the names that a number in `names` stands for
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Mapping

SCHEMA = """
CREATE TABLE reward_names (
    number INTEGER NOT NULL,
    name TEXT NOT NULL,             -- 'shapes', and its parts as 'shapes/strict'
    PRIMARY KEY (number, name)
) WITHOUT ROWID;
CREATE TABLE rewards (
    sample_id INTEGER NOT NULL REFERENCES samples (id) ON DELETE CASCADE,
    names INTEGER NOT NULL,         -- all of reward_names with this number
    raw REAL,                       -- in the scorer's units; NULL where it failed
    PRIMARY KEY (sample_id, names)
) WITHOUT ROWID;
"""
ROWS = "(SELECT sample_id, name, raw FROM rewards JOIN reward_names ON names = number)"
"""What to select `sample_id, name, raw` from, a row a name."""


class RewardWriter:
    """Writes rewards within one transaction; it knows the names that the index has numbers for."""

    def __init__(self, database: sqlite3.Connection):
        self._database = database
        known: dict[int, list[str]] = {}
        for number, name in database.execute("SELECT number, name FROM reward_names ORDER BY name"):
            known.setdefault(number, []).append(name)
        self._numbers = {tuple(names): number for number, names in known.items()}
        self._next = max(known, default=0) + 1

    def insert(self, sample: int, rewards: Mapping[str, float | None]) -> None:
        """Add the rewards of a sample that has none yet; equal parts of several rewards are one row."""
        equal: dict[Hashable, list[str]] = {}
        for name in sorted(rewards):
            part = name.partition("/")[2]
            equal.setdefault((part, rewards[name]) if part else name, []).append(name)
        rows = [(sample, self._number(tuple(names)), rewards[names[0]]) for names in equal.values()]
        self._database.executemany("INSERT INTO rewards VALUES (?, ?, ?)", rows)

    def _number(self, names: tuple[str, ...]) -> int:
        if names not in self._numbers:
            rows = [(self._next, name) for name in names]
            self._database.executemany("INSERT INTO reward_names VALUES (?, ?)", rows)
            self._numbers[names], self._next = self._next, self._next + 1
        return self._numbers[names]
