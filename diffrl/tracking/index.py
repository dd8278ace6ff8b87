"""The SQLite index of a run's samples: its tables, and how it is opened. Neither torch nor PIL is needed to read it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.tracking import reward_rows
from diffrl.tracking.places import place
from reward_models.common.stores import describe_failure, open_to_read, open_to_write, require_tables, transaction
from reward_models.common.suffixes import is_image

INDEX, IMAGES = "samples.sqlite", "samples"
GENERATED_SOURCES = ".sources"
"""Hidden, so that the copies are no samples of the folder."""


def source_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the image that a sample is an edit of, as its prompt named it; None of no edit.

    Args:
        metadata: of the sample, as it is stored; "source" is the image's path where the run was trained.
    """
    return path if is_image(path := metadata.get("source")) else None


def asked(prompt: str, metadata: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what a sample is of, `records.Prompt.key` of its prompt: the words, and the image that they edit."""
    return prompt, source_of(metadata)


def source_file(metadata: Mapping[str, Any], folder: str = f"{IMAGES}/sources") -> str | None:
    """Return where a small copy of the image is kept that a sample is an edit of; None of no edit.

    Args:
        metadata: of the sample, as it is stored.
        folder: of the copies, relative to the run; `GENERATED_SOURCES` of generated samples, relative to theirs.
    """
    path = source_of(metadata)
    if path is None:
        return None
    return f"{folder}/{hashlib.sha256(path.encode(errors='surrogatepass')).hexdigest()[:16]}.webp"


SCHEMA_VERSION = 2
SAMPLES = """
CREATE TABLE samples (
    id INTEGER PRIMARY KEY,
    stage TEXT NOT NULL,            -- what the sample was drawn for: 'train', 'eval', 'generate', ...
    iteration INTEGER NOT NULL,
    group_id INTEGER NOT NULL,      -- the slot of the iteration's batch that holds the prompt
    root INTEGER NOT NULL,          -- index of the initial noise within the group
    path TEXT NOT NULL,             -- child indices from the root, '0.1'; '' is the root
    seed INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    metadata TEXT NOT NULL,         -- JSON object that came with the prompt
    total REAL,                     -- weighted reward; NULL where a scorer failed
    advantage REAL,
    error TEXT,                     -- why a scorer failed
    picture TEXT,                   -- relative to the run directory
    exact INTEGER,                  -- 1: the picture has the sample's own pixels; 0: a small one to be looked at
    representative INTEGER,         -- 1: kept whatever it scored; 0: kept for how much its score changed
    UNIQUE (stage, iteration, group_id, root, path)
);
"""
NOTES = """
CREATE TABLE notes (
    sample_id INTEGER NOT NULL REFERENCES samples (id) ON DELETE CASCADE,
    name TEXT NOT NULL,             -- of the reward
    note TEXT NOT NULL,             -- its reason in words
    PRIMARY KEY (sample_id, name)
) WITHOUT ROWID;
"""
SCHEMA = SAMPLES + reward_rows.SCHEMA.lstrip() + NOTES.lstrip()


def connect(run_dir: Path, readonly: bool) -> sqlite3.Connection:
    """Open a run's index; a reader never blocks the run that writes to it.

    Raises:
        DiffrlError: it is missing, made by another version, no index at all, or read and lies elsewhere.
    """
    index = place(run_dir, INDEX) if readonly else run_dir / INDEX
    if readonly and not index.is_file():
        raise DiffrlError(f"{run_dir} holds no samples: {INDEX} is missing. Give the directory of a run.")
    with explained(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        return _connect(index, readonly)


@contextmanager
def explained(run_dir: Path) -> Iterator[None]:
    """Say which file failed, in place of a traceback from within SQLite."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise DiffrlError(f"The sample index {run_dir / INDEX} cannot be used: {describe_failure(error)}.") from error
    except OSError as error:
        raise DiffrlError(f"The samples of {run_dir} cannot be written: {error}.") from error


def _connect(index: Path, readonly: bool) -> sqlite3.Connection:
    database = open_to_read(index) if readonly else open_to_write(index)
    try:
        with transaction(database, "DEFERRED" if readonly else "IMMEDIATE"):
            _check_schema(database, index, readonly)
    except (sqlite3.DatabaseError, DiffrlError):
        database.close()
        raise
    return database


def _check_schema(database: sqlite3.Connection, index: Path, readonly: bool) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and tables == 0 and not readonly:
        for statement in SCHEMA.strip().rstrip(";").split(";\n"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version == 0 and tables == 0:
        raise DiffrlError(f"{index} is still empty: its run has just begun, or was ended as it did. Look again later.")
    elif version != SCHEMA_VERSION:
        problem = f"has schema {version}, this version of diffrl reads {SCHEMA_VERSION}"
        raise DiffrlError(f"{index} {problem}. Use the diffrl that wrote it, or move the file away.")
    else:
        require_tables(database)


def notes_of(database: sqlite3.Connection, samples: str, values: Sequence[object]) -> Iterator[tuple[int, str, str]]:
    """Yield reasons in words: number of the sample, name of the reward, the reason.

    `samples` is SQL that selects samples' numbers, or lists them; `values` are those of its question marks.
    """
    question = f"SELECT sample_id, name, note FROM notes WHERE sample_id IN ({samples}) ORDER BY name"
    for number, name, note in database.execute(question, list(values)):
        yield number, str(name), str(note)
