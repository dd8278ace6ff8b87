"""Image files, read within bounds; without torch. One place says what an animation is and what an unreadable file is.

An animation is a GIF, WebP or APNG of several frames. Everything else is its first, primary image: a phone's photo with
a second image for depth or stereo (MPO), a TIFF of several pages, an icon of several sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from reward_models.common.errors import RewardError
from reward_models.common.messages import describe, quote

ANIMATIONS = ("GIF", "WEBP", "PNG")
"""Formats of which several images are frames."""

MOST_BYTES = 2 * 2**30
"""Of a file's decoded pixels, three bytes each, all frames together."""

SHORTEST, SHOWN_INSTEAD = 10, 100
"""Milliseconds: browsers show a frame of at most the one for the other, and a frame that says nothing too."""

SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes an EXIF orientation."""

_BITS, _WHITE_IS_ZERO = 258, 262
"""Tags of a TIFF: bits a sample, and its photometric interpretation."""

_NOTE = re.compile(rb"frames=([0-9]{1,12})(?: fps=([0-9.]{1,20}))?\s*")


class TooLargeError(RewardError):
    """A file would take more memory than one file may."""


@dataclass(frozen=True)
class Header:
    """What is known of an image file before its pixels are read."""

    height: int  # in pixels, as it is shown
    width: int  # likewise
    frames: int  # that are stored; 1 unless it is an animation
    moves: bool  # whether it is a clip
    size: int  # about how many bytes its decoded pixels take


@contextmanager
def reading(name: object, what: str = "an image") -> Iterator[None]:
    """Turn whatever a decoder raises into one error that names the file.

    Decoders trust their input, so a damaged file may raise anything: IndexError, struct.error, zlib.error, MemoryError.

    Raises:
        RewardError: something was raised inside.
        TooLargeError: it has more pixels than are read.
    """
    try:
        yield
    except RewardError:
        raise
    except FileNotFoundError:
        raise RewardError(f"There is no file {name}. Check the path.") from None
    except UnidentifiedImageError:
        raise RewardError(f"{name} is no image that can be read. Is it whole?") from None
    except Image.DecompressionBombError:
        raise TooLargeError(
            f"{name} has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, which are not read. Make it smaller."
        ) from None
    except OSError as error:
        raise RewardError(f"{name} cannot be read as {what}: {error.strerror or error}.") from error
    except Exception as error:  # see above: any class of it is the fault of the file
        raise RewardError(f"{name} cannot be read as {what}: {describe(error)}.") from error


@contextmanager
def opened(
    file: str | Path | IO[bytes], name: object = None, formats: tuple[str, ...] | None = None
) -> Iterator[Image.Image]:
    """Open an image file; whatever is raised while it is open is a RewardError that names it, see `reading`."""
    shown = file if name is None else name
    try:
        with reading(shown), Image.open(file, formats=formats) as image:
            yield image
    except RewardError as error:
        if isinstance(file, str | Path) and str(shown) not in str(error):
            raise type(error)(f"{shown}: {error}") from error
        raise


def header_of(image: Image.Image) -> Header:
    """Read what the beginning of an opened image says; no pixels are decoded."""
    height, width = shown_size(image)
    frames = frames_of(image)
    noted = _noted(image)
    count = max(frames, noted[0] if noted is not None else 1)
    return Header(height, width, frames, noted is not None or frames > 1, 3 * height * width * count)


def frames_of(image: Image.Image) -> int:
    """Return how many frames of an animation an opened image stores, 1 for everything else."""
    if image.format not in ANIMATIONS:
        return 1
    return max(1, getattr(image, "n_frames", 1) - bool(getattr(image, "default_image", False)))


def shown_size(image: Any) -> tuple[int, int]:
    """Return height and width of an opened image as it is shown, whatever its EXIF orientation."""
    width, height = image.size
    if image.format == "TIFF" and hasattr(image, "tag_v2"):  # versions of Pillow differ in whether `size` is turned
        width, height = int(image.tag_v2[256]), int(image.tag_v2[257])
    return (width, height) if orientation_of(image) >= 5 else (height, width)


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation that is left to undo, 1 to 8; damaged EXIF data turn nothing, as in browsers."""
    if image.format == "PNG" and "exif" not in image.info and "Raw profile type exif" not in image.info:
        return 1  # Pillow would read the file to its end for it
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # of any class; see `reading`
        return 1
    return value if value in TURNS else 1


def still_of(image: Image.Image) -> Image.Image:
    """Return an opened image, or its first frame, upright and as RGB, or RGBA where something is transparent.

    Raises:
        RewardError: its values have no known range.
        Exception: whatever its decoder raises; see `reading`.
    """
    image.load()  # a TIFF is turned by this, and its orientation gone
    turn = TURNS.get(orientation_of(image))
    shown = eight_bits(image)
    return shown if turn is None else shown.transpose(turn)


def eight_bits(image: Image.Image) -> Image.Image:
    """Return an image of any mode as RGB, or as RGBA where something is transparent; 16-bit grey is scaled.

    Raises:
        RewardError: 32-bit or floating-point values, which have no known range.
    """
    if image.mode in SIXTEEN_BITS:
        values = np.asarray(image.convert("I") if image.mode != "I;16" else image).astype(np.int64)
        tags = getattr(image, "tag_v2", {})
        most = 2 ** int(tags.get(_BITS, (16,))[0]) - 1  # of 12 bits Pillow gives the values as they are
        shown = most - values if tags.get(_WHITE_IS_ZERO) == 0 else values
        grey = Image.fromarray(((shown * 255 + most // 2) // most).astype(np.uint8)).convert("RGB")
        if isinstance(image.info.get("transparency"), int):
            grey.putalpha(Image.fromarray(np.where(values == image.info["transparency"], 0, 255).astype(np.uint8)))
        return grey
    if image.mode in ("I", "F"):
        raise RewardError(
            f"An image must have 8 or 16 bits a channel. Got {'32-bit integers' if image.mode == 'I' else 'floats'}, "
            f"PIL mode {image.mode}, whose range nobody knows. Scale it to 8 bits first."
        )
    mode = "RGBA" if image.has_transparency_data else "RGB"
    return image if image.mode == mode else image.convert(mode)


def frames_and_rate(image: Image.Image, name: object) -> tuple[list[Image.Image], list[int], float | None]:
    """Read all frames of an animation, how often each counts, and the frames per second.

    A frame that is held counts as often as the shortest goes into the time that it is shown. What this package wrote
    says itself how many frames there are.

    Args:
        image: opened.
        name: of its file, for messages.

    Returns:
        Frames as `still_of` gives them, their counts, and the rate; None where the file does not say it.

    Raises:
        TooLargeError: all frames together take more than `MOST_BYTES`.
        RewardError: its note says less frames than there are.
        Exception: whatever its decoder raises; see `reading`.
    """
    head, noted = header_of(image), _noted(image)
    if noted is not None and noted[0] < head.frames:
        raise RewardError(
            f"{name} cannot be read as a clip: its XMP data say that it has {noted[0]} frames, and it holds "
            f"{head.frames}. Save it anew."
        )
    require_fits(name, head.height, head.width, max(head.frames, noted[0] if noted is not None else 1))
    first = int(bool(getattr(image, "default_image", False)) and head.frames < getattr(image, "n_frames", 1))
    frames, durations = [], []
    for number in range(first, first + head.frames):
        image.seek(number)
        shown = still_of(image)
        frames.append(shown.copy() if shown is image else shown)  # the next one takes its place
        durations.append(float(image.info.get("duration") or 0))
    if noted is not None:
        if len(frames) > 1 and noted[0] > sum(durations):
            raise RewardError(
                f"{name} cannot be read as a clip: its XMP data say that it has {noted[0]:,} frames, and it lasts "
                f"{sum(durations):g} ms. A frame lasts at least 1 ms. Save it anew."
            )
        counts = _counts(durations, sum(durations) / noted[0]) if len(frames) > 1 else [noted[0]]
        rate = noted[1] or (1000 * noted[0] / sum(durations) if sum(durations) else None)
    else:
        durations = [duration if duration > SHORTEST else SHOWN_INSTEAD for duration in durations]
        rough = _counts(durations, min(durations))
        counts = _counts(durations, sum(durations) / sum(rough))
        rate = 1000 * sum(counts) / sum(durations)
    require_fits(name, head.height, head.width, sum(counts))
    return frames, counts, rate


def require_fits(name: object, height: int, width: int, frames: int) -> None:
    """Refuse a file whose pixels would take more than `MOST_BYTES`.

    Raises:
        TooLargeError: with what was received and the limit.
    """
    if 3 * height * width * frames > MOST_BYTES:
        raise TooLargeError(
            f"{name} has {frames:,} frame{'s' if frames > 1 else ''} of {width:,} x {height:,} pixels, "
            f"{3 * height * width * frames / 1e9:,.1f} GB decoded. At most {MOST_BYTES / 1e9:.1f} GB of a file are "
            "read. Make it smaller or shorter."
        )


def _counts(durations: Sequence[float], unit: float) -> list[int]:
    return [max(1, round(duration / unit)) if unit > 0 else 1 for duration in durations]


def _noted(image: Image.Image) -> tuple[int, float | None] | None:
    """Return how many frames a clip of this package says that it has, and how many a second; None of other files.

    Raises:
        RewardError: it says it in another form.
    """
    note = image.info.get("xmp", b"")
    if image.format != "WEBP" or not isinstance(note, bytes) or not note.startswith(b"frames="):
        return None
    match = _NOTE.fullmatch(note)
    if match is None:
        raise RewardError(f"A clip's XMP data must say its number of frames. Got {quote(note)}. Save it anew.")
    return int(match[1]), float(match[2]) if match[2] else None
