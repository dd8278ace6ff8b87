"""The order of files: numbers in names by their size, so that 2.png comes before 10.png."""

from __future__ import annotations

import os
import re
from pathlib import PurePath

_NUMBER = re.compile(r"([0-9]+)")


def natural_key(path: str | os.PathLike[str]) -> tuple[tuple[tuple[str | int, ...], str], ...]:
    """Return what paths are sorted by: folder by folder, and within a name text by text and number by number."""
    return tuple((_pieces(part), part) for part in PurePath(path).parts)


def _pieces(name: str) -> tuple[str | int, ...]:
    """Return text and numbers in turn; two names have the same kind of piece at each place."""
    return tuple(int(piece) if index % 2 else piece for index, piece in enumerate(_NUMBER.split(name)))
