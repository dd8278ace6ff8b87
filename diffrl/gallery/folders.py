"""A folder of pictures as a source. (Owned by the folder builder.)"""

from __future__ import annotations

from pathlib import Path


class FolderSource:
    """A folder of pictures with captions."""

    kind = "folder"

    def __init__(self, key: str, path: Path, title: str | None = None):
        self.key, self.path, self.title = key, path, title or path.name
