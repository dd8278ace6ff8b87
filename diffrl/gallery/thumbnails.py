"""Small versions of pictures, made when they are asked for and kept in memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

from diffrl.gallery.errors import GalleryError

SIZES = (128, 256, 512, 1024)
"""Longest edges that may be asked for, so that nobody can fill the memory with others."""

MISSING = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 128 128" role="img" aria-label="picture missing">'
    '<rect width="128" height="128" fill="#8883"/><text x="64" y="60" font-family="sans-serif" font-size="13" '
    'text-anchor="middle" fill="#888">picture</text><text x="64" y="78" font-family="sans-serif" font-size="13" '
    'text-anchor="middle" fill="#888">missing</text></svg>'
)
"""Stands in the place of a picture that cannot be shown."""


class Thumbnails:
    """Thumbnails by file, time of change and size.

    Args:
        limit: bytes that are kept; the longest unused go first.
    """

    def __init__(self, limit: int = 64 * 2**20):
        self.limit, self._held = limit, 0
        self._cache: OrderedDict[tuple[str, int, int | None, bool], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path, size: int | None, still: bool) -> bytes | None:
        """A WebP of at most `size` pixels a side; None if the file itself will do: it is small, or moves.

        Args:
            path: a picture.
            size: one of `SIZES`, or None.
            still: the first frame of what moves.

        Raises:
            GalleryError: it cannot be read as a picture (404).
        """
        stat = path.stat()
        key = (str(path), stat.st_mtime_ns, size, still)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        made = shrink(path, size, still)
        if made is not None:
            with self._lock:
                if key not in self._cache:
                    self._held += len(made)
                self._cache[key] = made
                while self._held > self.limit and len(self._cache) > 1:
                    self._held -= len(self._cache.popitem(last=False)[1])
        return made


def shrink(path: Path, size: int | None, still: bool) -> bytes | None:
    """See `Thumbnails.get`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            moves = getattr(image, "n_frames", 1) > 1
            large = size is not None and max(image.size) > size
            if (moves and not still) or not (large or (moves and still)):
                return None
            if size is not None:
                image.draft("RGB", (size, size))
            small = image.convert("RGBA" if image.has_transparency_data else "RGB")
            if large:
                small.thumbnail((size, size), Image.Resampling.LANCZOS)
            out = io.BytesIO()
            small.save(out, format="WEBP", quality=85, method=2)
            return out.getvalue()
    except (OSError, ValueError, SyntaxError, EOFError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise GalleryError(f"The picture {path.name} cannot be read: {error}.", 404) from error
