"""Removing what lies at a path, whatever it is."""

from __future__ import annotations

import shutil
from pathlib import Path


def discard(path: Path) -> None:
    """Remove a folder with all that is in it, a file, or a link: never what a link points to. Nothing there is fine.

    Raises:
        OSError: it cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
