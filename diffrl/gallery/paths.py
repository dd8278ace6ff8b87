"""Which files may be read: those that lie in the folders that the gallery was given, links followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath

from diffrl.gallery.errors import GalleryError

IMAGES = (".webp", ".png", ".jpg", ".jpeg", ".gif", ".bmp")
VIDEOS = (".mp4", ".webm", ".mov", ".m4v")
"""What browsers play. Other videos (.mkv, .avi) are left out, and the page says how many."""
MEDIA = IMAGES + VIDEOS


def is_video(file: str | PurePath) -> bool:
    """Return whether a file is shown as a video element; `is video` in templates."""
    return PurePath(file).suffix.lower() in VIDEOS


def _within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def inside(root: Path, file: str, folders: Sequence[Path]) -> Path:
    """Return an image or video below one of some folders.

    Args:
        root: what `file` is relative to.
        file: as it stands in an address.
        folders: where it may lie, after every link was followed; a folder that is itself a link out of `root` is none.

    Raises:
        GalleryError: 404: it lies elsewhere, is no image, or is missing; the sentence does not tell which is there.
    """
    unknown = GalleryError(f"There is no image {file!r} here. It may have been removed with its run.", 404)
    if "\0" in file or "\\" in file or Path(file).suffix.lower() not in MEDIA:
        raise unknown
    try:
        path = os.path.realpath(os.path.join(root, file))  # strings: a ballot asks for thousands of them
        below = any(_within(path, os.path.realpath(folder)) for folder in folders)
        if below and _within(path, os.path.realpath(root)) and os.path.isfile(path):
            return Path(path)
    except (OSError, ValueError, RuntimeError):  # a name too long for the disk, a loop of links
        pass
    raise unknown


def present(root: Path, files: Iterable[str], media: Callable[[str], str]) -> set[str]:
    """Return those of many files that a source has; it is asked for one a folder, to follow links once for all.

    Args:
        root: the source's path.
        files: relative to it.
        media: `Source.media`, which raises GalleryError for what is elsewhere or gone.
    """
    known: set[str] = set()
    folders: dict[tuple[str, str], Path] = {}
    for file in files:
        name = PurePath(file)
        alike = (str(name.parent), name.suffix)
        try:
            if alike in folders and "\\" not in file and stat.S_ISREG((folders[alike] / name.name).lstat().st_mode):
                known.add(file)
                continue
            path = Path(media(file))  # of a link, too
        except (GalleryError, OSError, ValueError):
            continue
        known.add(file)
        if not (root / file).is_symlink():
            folders[alike] = path.parent
    return known
