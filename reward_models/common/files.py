"""Files that outlive a kill: written whole or not at all, closed, and removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self


class Closing:
    """What is closed at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; closing twice does nothing."""
        raise NotImplementedError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; its file becomes `path` in one step when the block ends.

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


def discard(path: Path) -> None:
    """Remove a folder with all that is in it, a file, or a link: never what a link points to. Nothing there is fine.

    Raises:
        OSError: it cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
