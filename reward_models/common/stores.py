"""How an SQLite file that may be damaged, or somebody else's, is opened: every question ends. Imports SQLite alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reward_models.common.messages import quote

BUSY_SECONDS = 30.0
"""How long a connection waits for another one's lock."""
MOST_STEPS = 2_000_000_000
"""Steps of SQLite's machine that a question may take: those of millions of samples take a tenth."""
STEPS_AT_ONCE = 100_000
"""Steps between two looks at how many there were."""
LONGEST_VALUE = 2**24
"""Bytes of a value or a row: prompts and metadata have thousands."""

NOT_PLAIN = """
SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'
UNION ALL SELECT 'rule of writing', name FROM sqlite_master WHERE type = 'table' AND (
    sql LIKE '%CHECK%' OR sql LIKE '%ON%CONFLICT%' OR sql LIKE '%DEFAULT%')
UNION ALL SELECT 'computed index', name FROM sqlite_master WHERE type = 'index' AND (
    sql LIKE '%(%(%' OR sql LIKE '%WHERE%')
UNION ALL SELECT 'generated column', shape.name FROM sqlite_master AS made, pragma_table_xinfo(made.name) AS shape
WHERE made.type = 'table' AND shape.hidden > 1 LIMIT 1
"""


class GuardedConnection(sqlite3.Connection):
    """A connection whose questions end, and whose values have a largest size, whatever the file holds."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Open the database with a limit of time; `sqlite3.connect` makes it as its `factory`."""
        super().__init__(*args, **kwargs)
        self._taken = taken = [0]

        def tick() -> bool:
            taken[0] += STEPS_AT_ONCE
            return taken[0] > MOST_STEPS

        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        self.set_progress_handler(tick, STEPS_AT_ONCE)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Execute a question; every one has the whole limit."""
        self._taken[0] = 0
        return super().execute(*args)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open an SQLite file so that nothing can be written through the connection, and every question of it ends.

    Raises:
        sqlite3.Error: it is missing, or no database.
    """
    # A reader opens the file for writing and then swears off it: only such a connection clears away the files that WAL
    # readers share (-wal, -shm) when it is the last to close. Where the file may not be written, SQLite only reads it.
    mode = "rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        mode = "ro&immutable=1"  # on a read-only disk SQLite cannot make the files that WAL readers share
    uri = f"{Path(os.path.realpath(path)).as_uri()}?mode={mode}"
    database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, factory=GuardedConnection)
    try:
        database.execute("PRAGMA query_only = ON")
    except sqlite3.Error:
        database.close()
        raise
    return database


def open_to_write(path: Path | None, **options: Any) -> sqlite3.Connection:
    """Open or make an SQLite file in WAL mode, where readers never block the writer; every statement ends here too.

    Whoever writes to a file that was there calls `require_tables` before. Transactions are the caller's to begin.

    Args:
        path: the file; None keeps all in memory.
        options: of `sqlite3.connect`.

    Raises:
        sqlite3.Error: it cannot be made, or is no database.
    """
    name = ":memory:" if path is None else f"{Path(os.path.realpath(path)).as_uri()}?mode=rwc"
    options |= {"uri": path is not None, "timeout": BUSY_SECONDS, "isolation_level": None}
    database = sqlite3.connect(name, factory=GuardedConnection, **options)
    try:
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        database.close()
        raise
    return database


@contextmanager
def transaction(database: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Do all of the block or nothing; a transaction that SQLite ended itself, as on a full disk, is over already."""
    database.execute(f"BEGIN {kind}")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def require_tables(database: sqlite3.Connection) -> None:
    """Refuse a file with anything but plain tables: what is computed as they are read or written may never end.

    Raises:
        sqlite3.DatabaseError: it has a view, a virtual table, a trigger, a generated column, a computed index, or a
            rule of what happens on writing.
    """
    others = database.execute(NOT_PLAIN).fetchone()
    if others is not None:
        kind, name = others
        raise sqlite3.DatabaseError(f"it holds the {kind} {quote(name)}, where only plain tables are read")


def describe_failure(error: sqlite3.Error) -> str:
    """Return why a file could not be read, without a full stop."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
        return f"a question took more than {MOST_STEPS:,} steps, as of a damaged file"
    scarce = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return f"{error}; free space, raise the limit (ulimit -f), or mend the disk" if scarce else str(error)
