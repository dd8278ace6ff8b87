"""Images as a voter gets them: nothing in their bytes or headers tells which of the two sets they belong to."""

from __future__ import annotations

import io
import re
from pathlib import Path

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.paths import is_video
from diffrl.gallery.thumbnails import DECODING, showing, upright
from reward_models.errors import RewardError

LARGEST = 2048
"""Longest edge, in pixels."""


def blind_picture(here: Path, beside: Path) -> tuple[bytes, str]:
    """An image's bytes and media type.

    A still is written anew as PNG, without what its file said beside the pixels; where the two differ in size, the
    smaller is enlarged, so that neither is told by its size. What moves is given as it is, with one type for all.

    Args:
        here: the image.
        beside: the one that it is shown beside.

    Raises:
        GalleryError: it cannot be read (404).
    """
    if is_video(here):
        try:
            return here.read_bytes(), "video/mp4"
        except OSError as error:
            raise GalleryError("The video cannot be read.", 404) from error
    from PIL import Image

    from reward_models.image_files import frames_of

    with DECODING, showing(here, "The image") as image:
        if frames_of(image) > 1:
            return here.read_bytes(), "image/webp"
        picture = upright(image)
        longest = min(LARGEST, max(*picture.size, _longest(beside)))
        factor = longest / max(picture.size)
        if factor != 1:
            size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
            picture = picture.resize(size, Image.Resampling.BICUBIC if factor > 1 else Image.Resampling.LANCZOS)
        clean = Image.new(picture.mode, picture.size)
        clean.paste(picture)
        out = io.BytesIO()
        clean.save(out, format="PNG", compress_level=1)
        return out.getvalue(), "image/png"


def _longest(path: Path) -> int:
    """Longest edge of an image; 0 of what cannot be read or is a video."""
    from reward_models.image_files import opened

    try:
        with opened(path) as image:
            return int(max(image.size))
    except RewardError:
        return 0


def part(data: bytes, asked: str | None) -> tuple[bytes, int, dict[str, str]]:
    """What answers a Range header: bytes, status, headers. Browsers ask so for videos, to repeat them."""
    found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", asked or "")
    if found is None:
        return data, 200, {"Accept-Ranges": "bytes"}
    start = int(found[1])
    end = min(int(found[2]) if found[2] else len(data) - 1, len(data) - 1)
    if start > end:
        return b"", 416, {"Content-Range": f"bytes */{len(data)}"}
    headers = {"Content-Range": f"bytes {start}-{end}/{len(data)}", "Accept-Ranges": "bytes"}
    return data[start : end + 1], 206, headers
