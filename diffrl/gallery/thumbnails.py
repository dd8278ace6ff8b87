"""Images as they are sent: small versions, kept in memory, and blind ones, whose bytes do not tell whose they are."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import escape

from diffrl.errors import DiffrlError
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.kept import Kept
from diffrl.gallery.paths import is_video
from diffrl.gallery.records import Source
from reward_models.common.errors import RewardError

if TYPE_CHECKING:
    from PIL import Image

SIZES = (128, 256, 512, 1024)
"""Longest edges that may be asked for, so that nobody can fill the memory with others."""

PIXELS = 50_000_000
"""Of larger images no small one is made: decoding takes up to four bytes a pixel and more, whatever the file has."""

TURNED = ("JPEG", "MPO", "PNG")
"""Formats in which browsers heed an orientation; of WebP Chromium does not."""

DECODING = threading.BoundedSemaphore(2)
"""Images that are decoded at once; each may take hundreds of megabytes."""


def sign(words: str, why: str = "") -> str:
    """Return an SVG that stands in the place of an image: "image" and a word, with the reason in its title."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 128 128" role="img" '
        f'aria-label="image {escape(words)}"><title>{escape(why or f"image {words}")}</title>'
        '<rect width="128" height="128" fill="#8883"/><text x="64" y="60" font-family="sans-serif" font-size="13" '
        'text-anchor="middle" fill="#888">image</text><text x="64" y="78" font-family="sans-serif" font-size="13" '
        f'text-anchor="middle" fill="#888">{escape(words)}</text></svg>'
    )


MISSING = sign("missing")
"""Stands in the place of an image that cannot be shown."""


class Thumbnails:
    """Thumbnails by file, time of change and size.

    Args:
        limit: bytes that are kept; the longest unused go first.
    """

    def __init__(self, limit: int = 64 * 2**20):
        self._kept: Kept[bytes] = Kept(limit, len)

    def get(self, path: Path, size: int | None, still: bool) -> bytes | None:
        """Return a WebP of at most `size` pixels a side; None if the file itself will do: it is small, or moves.

        With `still` it is the first frame of what moves.

        Raises:
            GalleryError: it cannot be read as an image (404), or is too large (413).
        """
        stat = path.stat()
        key = (str(path), stat.st_mtime_ns, stat.st_size, size, still)
        return self._kept.get(key, lambda: shrink(path, size, still))


def shrink(path: Path, size: int | None, still: bool) -> bytes | None:
    """Return a small WebP of an image, made anew; see `Thumbnails.get`."""
    from PIL import Image

    from reward_models.common.image_files import frames_of

    with DECODING, showing(path, f"The image {path.name}") as image:
        moves = frames_of(image) > 1
        large = size is not None and max(image.size) > size
        if (moves and not still) or not (large or (moves and still)):
            return None
        if size is not None:
            image.draft("RGB", (size, size))
        small = upright(image)
        if large and size is not None:
            small.thumbnail((size, size), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        small.save(out, format="WEBP", quality=85, method=2)
        return out.getvalue()


@contextlib.contextmanager
def showing(path: Path, name: str) -> Iterator[Image.Image]:
    """Open an image that is to be shown; what is raised while it is open says so in a sentence that begins with `name`.

    Raises:
        GalleryError: it cannot be read (404), or has more than `PIXELS` (413).
    """
    from reward_models.common.image_files import TooLargeError, opened

    try:
        with opened(path, name) as image:
            if image.width * image.height > PIXELS:
                raise TooLargeError(
                    f"{name} has {image.width:,} x {image.height:,} pixels; the gallery makes small ones of images up "
                    f"to {PIXELS // 10**6} megapixels. Make it smaller."
                )
            yield image
    except TooLargeError as error:
        raise GalleryError(str(error), 413) from error
    except RewardError as error:
        raise GalleryError(str(error), 404) from error


def upright(image: Image.Image) -> Image.Image:
    """Return an opened image as RGB or RGBA, turned as its EXIF data say where browsers do so with the file itself."""
    from reward_models.common.image_files import eight_bits, still_of

    return still_of(image) if image.format in TURNED else eight_bits(image)


LARGEST = 2048
"""Longest edge, in pixels."""


def blind_image(here: Path, beside: Path) -> tuple[bytes, str]:
    """Return an image's bytes and media type.

    A still is written anew as PNG, without what its file said beside the pixels; where the two differ in size, the
    smaller is enlarged, so that neither is told by its size. What moves is given as it is, with one type for all.

    Raises:
        GalleryError: it cannot be read (404).
    """
    if is_video(here):
        try:
            return here.read_bytes(), "video/mp4"
        except OSError as error:
            raise GalleryError("The video cannot be read.", 404) from error
    from PIL import Image

    from reward_models.common.image_files import frames_of

    with DECODING, showing(here, "The image") as image:
        if frames_of(image) > 1:
            return here.read_bytes(), "image/webp"
        image_shown = upright(image)
        longest = min(LARGEST, max(*image_shown.size, _longest(beside)))
        factor = longest / max(image_shown.size)
        if factor != 1:
            size = (max(1, round(image_shown.width * factor)), max(1, round(image_shown.height * factor)))
            image_shown = image_shown.resize(size, Image.Resampling.BICUBIC if factor > 1 else Image.Resampling.LANCZOS)
        clean = Image.new(image_shown.mode, image_shown.size)
        clean.paste(image_shown)
        out = io.BytesIO()
        clean.save(out, format="PNG", compress_level=1)
        return out.getvalue(), "image/png"


def _longest(path: Path) -> int:
    """Return longest edge of an image; 0 of what cannot be read or is a video."""
    from reward_models.common.image_files import opened

    try:
        with opened(path) as image:
            return int(max(image.size))
    except RewardError:
        return 0


def part(data: bytes, asked: str | None) -> tuple[bytes, int, dict[str, str]]:
    """Return what answers a Range header: bytes, status, headers. Browsers ask so for videos, to repeat them."""
    match = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", asked or "")
    if match is None:
        return data, 200, {"Accept-Ranges": "bytes"}
    start = int(match[1])
    end = min(int(match[2]) if match[2] else len(data) - 1, len(data) - 1)
    if start > end:
        return b"", 416, {"Content-Range": f"bytes */{len(data)}"}
    headers = {"Content-Range": f"bytes {start}-{end}/{len(data)}", "Accept-Ranges": "bytes"}
    return data[start : end + 1], 206, headers


ANIMATED = 0x02
"""Bit of a WebP's extended header, byte 20 (RIFF container specification, "VP8X")."""
HEAD = 4096
"""Bytes that are read; the chunk "acTL" of an animated PNG stands near the beginning."""


def moves(source: Source, file: str | None) -> bool:
    """Return whether an image is an animated WebP, GIF or PNG; False for videos and for what is missing."""
    if not file or not file.lower().endswith((".webp", ".gif", ".png")):
        return False
    try:
        with open(source.media(file), "rb") as opened:
            head = opened.read(HEAD)
    except (OSError, DiffrlError):
        return False
    if head[:4] == b"GIF8":
        return True
    if head[:4] == b"\x89PNG":
        return b"acTL" in head.partition(b"IDAT")[0]
    return len(head) > 20 and head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and bool(head[20] & ANIMATED)
