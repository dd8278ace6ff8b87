"""Files that outlive a kill: written whole or not at all, and removed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from reward_models.files import discard, replacing

__all__ = ["discard", "flush", "replacing", "write_json", "write_text"]


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
