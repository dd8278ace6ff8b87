"""Pictures as bytes that lose nothing: PNG and lossless WebP, looked at before they are decoded.

A decoder that trusts its input can be made to fill the memory by a file of a few bytes, and a lossy picture has
another score than the one it was made from. So the format and the size are read from the header first.
"""

from __future__ import annotations

import io
import struct
from typing import Literal

from torch import Tensor

from reward_models.common.errors import RewardError
from reward_models.common.image_files import SIXTEEN_BITS, TooLargeError, header_of, opened, orientation_of
from reward_models.media import from_pil, require_webp, to_pil

PictureFormat = Literal["png", "webp"]


class UnreadablePictureError(ValueError):
    """The bytes are no whole PNG or WebP picture of 8 bits a channel."""


class LossyPictureError(ValueError):
    """The bytes are a picture in a format that loses detail, or of an unknown one."""


class HugePictureError(TooLargeError):
    """The picture has more pixels than allowed."""


def encode_picture(picture: Tensor, form: PictureFormat) -> bytes:
    """A uint8 (3, H, W) picture as a file that decodes to the same values.

    Raises:
        RewardError: it is too large for WebP.
    """
    buffer = io.BytesIO()
    if form == "png":
        to_pil(picture).save(buffer, format="PNG", compress_level=1)
    else:
        require_webp(picture)
        to_pil(picture).save(buffer, format="WEBP", lossless=True, quality=20, method=2)
    return buffer.getvalue()


def picture_size(data: bytes) -> tuple[int, int]:
    """Width and height that the header of a lossless picture states; nothing is decoded.

    Raises:
        LossyPictureError: JPEG, lossy WebP, or neither PNG nor WebP.
        UnreadablePictureError: the header is cut off.
    """
    if data.startswith(b"\xff\xd8"):
        raise LossyPictureError("is a JPEG, not the image that was made: send PNG or lossless WebP")
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            return width, height
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp_size(data)
    except struct.error:
        raise UnreadablePictureError("is cut off") from None
    raise LossyPictureError("is neither PNG nor WebP")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Of the container's specification: chunks of a name, a length and a body of even length."""
    place = 12
    for _ in range(64):  # a picture has a handful of chunks
        name, length = struct.unpack_from("<4sI", data, place)
        if name in (b"ANIM", b"ANMF"):
            raise UnreadablePictureError("is an animation: send a clip as a list of frames")
        if name == b"VP8 ":
            raise LossyPictureError("is a lossy WebP, not the image that was made: save it with lossless=True")
        if name == b"VP8L":
            (bits,) = struct.unpack_from("<I", data, place + 9)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        place += 8 + length + length % 2
    raise UnreadablePictureError("holds no image")


def decode_picture(data: bytes, max_pixels: int) -> Tensor:
    """The uint8 RGB picture (3, H, W) in a lossless file; transparency is dropped.

    Args:
        data: the file's bytes.
        max_pixels: more are refused before they are decoded.

    Raises:
        LossyPictureError, UnreadablePictureError, HugePictureError: see there.
    """
    _refuse_huge(*picture_size(data), max_pixels)
    try:
        with opened(io.BytesIO(data), "it", formats=("PNG", "WEBP")) as image:
            _refuse_huge(*image.size, max_pixels)  # a PNG may state its size twice
            if image.mode in SIXTEEN_BITS:
                raise RewardError("an image must have 8 bits a channel. Got 16. Convert it first")
            if header_of(image).moves:
                raise RewardError("it is an animation. Send a clip as a list of frames")
            if orientation_of(image) != 1:
                raise RewardError("its EXIF data say that it is to be turned. Send it as it is shown")
            return from_pil(image)
    except TooLargeError as error:
        raise HugePictureError(str(error)) from None
    except RewardError as error:
        raise UnreadablePictureError(f"cannot be decoded: {error}") from None


def _refuse_huge(width: int, height: int, max_pixels: int) -> None:
    if not 0 < width * height <= max_pixels:
        raise HugePictureError(f"has {width} x {height} pixels, where 1 to {max_pixels} are allowed")
