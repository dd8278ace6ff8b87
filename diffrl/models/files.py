"""JSON files of a pipeline that somebody else made, read within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError
from reward_models.common.messages import show
from reward_models.common.reading import Unreadable, parse_json, read_text

MOST_BYTES = 4_000_000
"""Of a JSON file of settings; the index of a network in hundreds of files has a tenth of it."""

POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file of Git LFS begins that has not been pulled."""

MOST_BLANK = 4096
"""Bytes at the end of a JSON file that are looked at."""


def read_object(path: Path, missing: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return a JSON object.

    Args:
        path: of its file.
        missing: returned if there is no file.

    Raises:
        FileNotFoundError: there is none, and `missing` is None.
        ConfigError: it is too large, nested too deep, no object, or Git-LFS's pointer to one.
    """
    try:
        content = parse_json(read_text(path, MOST_BYTES))
    except FileNotFoundError:
        if missing is None:
            raise
        return missing
    except Unreadable as error:
        refuse_pointer(path)
        raise ConfigError(f"{path} {error}. Save the pipeline again, or fetch it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a JSON object. Got {show(content)}. Save the pipeline again.")
    return content


def refuse_pointer(path: Path) -> None:
    """Refuse what Git LFS leaves in a file's place until it is pulled.

    Raises:
        ConfigError: says how to have the file.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ConfigError(
                f"{path} must be the file itself. Got a Git-LFS pointer to it. Run: git lfs pull; or fetch the "
                "pipeline again."
            )


def require_whole(path: Path) -> None:
    """Refuse a pointer, a file without content, and JSON that ends in the middle; no more than its ends are read.

    Raises:
        ConfigError: names the file.
        OSError: it cannot be opened.
    """
    refuse_pointer(path)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MOST_BLANK))
        end = file.read(MOST_BLANK).rstrip()
    if size == 0:
        raise ConfigError(f"{path} must not be empty. Got 0 bytes. Fetch the pipeline again.")
    if path.suffix == ".json" and not end.endswith((b"}", b"]")):
        raise ConfigError(f"{path} must be whole. It is no JSON: it ends in the middle. Fetch the pipeline again.")
