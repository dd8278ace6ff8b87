"""What is asked of an SQLite file of somebody else's before it is read; nothing heavy is imported."""

from __future__ import annotations

import sqlite3

from reward_models.messages import quote


def require_tables(database: sqlite3.Connection) -> None:
    """Refuse an index with anything but tables in a reader's way: a view may be a query that never ends.

    Raises:
        sqlite3.DatabaseError: it has a view, a virtual table or a trigger.
    """
    others = database.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1"
    ).fetchone()
    if others is not None:
        kind, name = others
        raise sqlite3.DatabaseError(f"it holds the {kind} {quote(name)}, and an index of samples holds tables alone")
