"""Files that outlive a kill: written whole or not at all, SQLite opened for one writer and many readers, removal."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from reward_models.stores import BUSY_SECONDS, open_to_read


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write a file to, which becomes `path` in one step when the block ends.

    Readers see the old file or the new one, never a part, and so does whoever comes after a kill. If the block fails,
    the old file stays. A power cut may lose the new one, unless it was flushed.

    Yields:
        `.NAME.tmp` beside the file; a kill leaves it there, and the next writing replaces it.

    Raises:
        OSError: it cannot be given its name.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            discard(temporary)
        raise


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write a UTF-8 file so that it is either the old one or the new one.

    Args:
        path: the file.
        text: its content.
        errors: what becomes of characters that UTF-8 cannot hold, as `str.encode` takes it.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors=errors)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is either the old one or the new one.

    Raises:
        DiffrlError: it cannot be written.
    """
    try:
        write_text(path, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise DiffrlError(f"Cannot write {path}: {error.strerror or error}. Free space or mend the disk.") from error


def flush(path: Path) -> None:
    """Force a file, or a folder's names, onto the disk, where a power cut leaves it.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def follow_umask(path: Path) -> None:
    """Give a file, or all files below a folder, the mode of new ones; safetensors writes for the owner alone.

    Raises:
        OSError: nothing can be written there, or a file is another user's.
    """
    # `os.umask` tells the mask by changing it, for all threads; a new file has it.
    probe = (path if path.is_dir() else path.parent) / ".mode.tmp"
    probe.unlink(missing_ok=True)
    probe.touch()
    try:
        mode = stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink()
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def open_database(path: Path, readonly: bool = False) -> sqlite3.Connection:
    """Open an SQLite file in WAL mode: readers never block the writer. Transactions are the caller's to begin.

    Args:
        path: the file; a writer makes it if there is none.
        readonly: nothing can be written through the connection.

    Raises:
        sqlite3.Error: it is missing for a reader, or no database.
    """
    if readonly:
        return open_to_read(path)
    uri = f"{path.resolve().as_uri()}?mode=rwc"
    database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        database.close()
        raise
    return database


def discard(path: Path) -> None:
    """Remove a folder with all that is in it, a file, or a link: never what a link points to. Nothing there is fine.

    Raises:
        OSError: it cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
