"""Files that outlive a kill: written whole or not at all, and removed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from diffrl.errors import ConfigError, DiffrlError
from reward_models.common.files import discard, replacing
from reward_models.common.reading import Unreadable, require_file

__all__ = [
    "discard",
    "flush",
    "follow_umask",
    "open_own",
    "read_own",
    "replacing",
    "require_empty",
    "write_json",
    "write_text",
]

MOST_BYTES = 2**29
"""Of a file that a run, a comparison or the gallery wrote: 100,000 iterations of metrics, and more, fit."""

LONGEST_LINE = 2**22
"""Bytes of a row of metrics, which has a few thousand."""


def open_own(path: Path) -> BinaryIO:
    """Open a file that diffrl wrote itself, and that somebody may have damaged since, to read its bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, is no plain file, or has more than `MOST_BYTES`.
    """
    try:
        size = require_file(path)
    except Unreadable as error:
        raise OSError(f"it {error}") from error
    if size > MOST_BYTES:
        raise OSError(f"it is too large: it has {size:,} bytes, and at most {MOST_BYTES:,} are read")
    return path.open("rb")


def read_own(path: Path) -> bytes:
    """Return the bytes of a file; see `open_own`."""
    with open_own(path) as file:
        return file.read()


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
    # `os.umask` tells the mask by changing it, for all threads; a new file has it. Several ranks write into one folder.
    probe = (path if path.is_dir() else path.parent) / f".{uuid4().hex}.tmp"
    probe.touch(exist_ok=False)
    try:
        mode = stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink()
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def require_empty(directory: Path, option: str, more: str = "") -> None:
    """Refuse to write into a folder that holds something.

    Args:
        directory: the folder, which need not be there.
        option: that names it, for the message.
        more: the way out, to end the message with.

    Raises:
        ConfigError: it holds something, or is a file.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            f"{option} must be a new or empty folder, so that nothing is overwritten. Got {directory}.{more}"
        )
