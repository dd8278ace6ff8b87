"""Reading of requests by the scoring service: every field is checked, and nothing large is made before it is allowed.

The counterpart of `encode_request` in wire.py. Whatever the bytes are, the end is a batch or a `RefusedError`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from reward_models.base import RewardBatch
from reward_models.common.errors import RewardError
from reward_models.serving.lossless import (
    HugePictureError,
    LossyPictureError,
    UnreadablePictureError,
    decode_picture,
    picture_size,
)
from reward_models.serving.wire import JSON, SAFETENSORS, Limits, RefusedError, Side

VALUE = 256
"""Bytes that a value takes once JSON is parsed, at most, beside its text: a key and an object to be in."""
DECODING = 27
"""Bytes a pixel that a picture takes while it is decoded, at most: PNG takes 10 to 18, WebP up to 27."""

Reserve = Callable[[int], None]


def decode_request(
    content_type: str, body: bytes | bytearray, limits: Limits, reserve: Reserve = lambda size: None
) -> RewardBatch:
    """The batch in the body of a request.

    Args:
        content_type: of the request; what follows a semicolon is ignored.
        body: its bytes. Media of safetensors in a bytearray are not copied: it must not be changed any more.
        limits: of the service.
        reserve: told how many bytes parsing and decoding will take before they are taken, and what of them is free
            again as a negative number: what is left is the batch. May raise a `RefusedError`.

    Raises:
        RefusedError: 400 not JSON or safetensors, 413 too much, 415 another type or a lossy picture, 422 wrong fields.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        character = 1 if body.isascii() else 4  # one character beyond makes a text of four bytes each
        with _reserved(reserve, (2 * character + 1) * len(body)):  # as a text, as texts in it, decoded from base64
            side = _json(body, "The body", limits, reserve)
            if not isinstance(side, dict):
                raise RefusedError(400, f"The body must be a JSON object with media and prompts. Got {_kind_of(side)}.")
            files = side.pop("media", None)
            _claim_side(len(body) - _length(files), limits, reserve)
            media = _media_of_files(files, limits, reserve)
    elif kind == SAFETENSORS:
        side, media = _safetensors(body, limits, reserve)
    else:
        raise RefusedError(415, f"A request is {JSON} or {SAFETENSORS}. Got {kind[:80] or 'no content type'!r}.")
    return _batch(media, side)


def _batch(media: Tensor, side: Mapping[str, Any]) -> RewardBatch:
    """Check the fields beside the media."""
    unknown = sorted(set(side) - set(Side.model_fields))
    if unknown:
        known = ", ".join(Side.model_fields)
        raise RefusedError(422, f"A request has media, {known}. Got also {', '.join(map(repr, unknown))[:200]}.")
    try:
        fields = Side.model_validate(side)
        return RewardBatch(media, fields.prompts, fields.metadata or [], fields.fps, fields.groups or [])
    except ValidationError as error:
        name = str(error.errors(include_input=False, include_url=False)[0]["loc"][0])
        rule = Side.model_fields[name].description
        raise RefusedError(422, f"{name} must be {rule}. Got {_kind_of(side[name])}.") from None
    except RewardError as error:
        raise RefusedError(422, str(error)) from None


@contextmanager
def _reserved(reserve: Reserve, size: int) -> Iterator[None]:
    """Hold bytes for a while."""
    reserve(size)
    try:
        yield
    finally:
        reserve(-size)


def _length(files: Any) -> int:
    """Characters of files as texts, or of lists of them."""
    clips = [file if isinstance(file, list) else [file] for file in (files if isinstance(files, list) else [])]
    return sum(len(file) for clip in clips for file in clip if isinstance(file, str))


def _claim_side(size: int, limits: Limits, reserve: Reserve) -> None:
    """Refuse too much beside the media, and reserve the memory of its texts."""
    if size > limits.max_side_mb * 1e6:
        raise RefusedError(
            413,
            f"What a request says beside its media may have {limits.max_side_mb:g} MB. Got {size / 1e6:.1f} MB. Send "
            "shorter prompts and metadata, or fewer samples at once.",
        )
    reserve(4 * size)  # a text has up to four bytes a character


def _json(data: bytes | bytearray, what: str, limits: Limits, reserve: Reserve) -> Any:
    """What JSON says; it is not parsed if it may have too many values, and the memory of others is reserved."""
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))  # each follows a comma or begins in brackets
    if values > limits.max_values:
        raise RefusedError(
            413, f"{what} may have {limits.max_values} values. It has up to {values}. Send fewer at once."
        )
    reserve(VALUE * values)

    def refuse(token: str) -> None:
        raise ValueError(f"{token} is not JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # wrong JSON, wrong UTF-8, or nested too deep
        raise RefusedError(400, f"{what} is not valid JSON: {str(error)[:120]}.") from None


def _media_of_files(files: Any, limits: Limits, reserve: Reserve) -> Tensor:
    if not isinstance(files, list) or not files:
        raise RefusedError(422, f"media must be a list of base64 images, or of lists of frames. Got {_kind_of(files)}.")
    _refuse_many(len(files), limits)
    clips = [file if isinstance(file, list) else [file] for file in files]
    if len({(isinstance(file, list), len(clip)) for file, clip in zip(files, clips, strict=True)}) > 1:
        raise RefusedError(422, "media must be all images, or all clips of one length. Send others apart.")
    if not clips[0]:
        raise RefusedError(422, "A clip must have at least one frame. Got an empty list.")
    raw = [[_base64(file, row) for file in clip] for row, clip in enumerate(clips)]
    sizes = {_of_picture(row, picture_size, file) for row, clip in enumerate(raw) for file in clip}
    if len(sizes) > 1:
        different = ", ".join(f"{width}x{height}" for width, height in sorted(sizes)[:4])
        raise RefusedError(
            422, f"All images of a request must have one size. Got {different}. Send each size on its own."
        )
    ((width, height),) = sizes
    shape = (len(raw), len(raw[0]), 3, height, width)
    _claim(shape, limits, reserve)
    with _reserved(reserve, DECODING * width * height):
        media = torch.empty(shape, dtype=torch.uint8)
        for row, clip in enumerate(raw):
            for frame, file in enumerate(clip):
                media[row, frame] = _of_picture(row, decode_picture, file, limits.max_pixels)
    return media if isinstance(files[0], list) else media[:, 0]


def _base64(text: Any, row: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise RefusedError(422, f"Image {row} must be a text in base64 (RFC 4648). Got {_kind_of(text)}.") from None


def _of_picture(row: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call, and say which picture was at fault."""
    try:
        return function(*arguments)
    except (LossyPictureError, HugePictureError, UnreadablePictureError) as error:
        status = 415 if isinstance(error, LossyPictureError) else 413 if isinstance(error, HugePictureError) else 422
        raise RefusedError(status, f"Image {row} {error}.") from None


def _safetensors(body: bytes | bytearray, limits: Limits, reserve: Reserve) -> tuple[dict[str, Any], Tensor]:
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise RefusedError(400, "The body is not a whole safetensors file.")
    _claim_side(length, limits, reserve)
    header = _json(body[8 : 8 + length], "The header of the safetensors file", limits, reserve)
    if not isinstance(header, dict) or set(header) - {"__metadata__"} != {"media"}:
        raise RefusedError(422, "The safetensors file must hold one tensor, `media`, uint8 RGB (B, 3, H, W).")
    entry, notes = header["media"], header.get("__metadata__", {})
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if not isinstance(shape, list) or not all(type(n) is int for n in shape) or not isinstance(notes, dict):
        raise RefusedError(400, "The header of the safetensors file is wrong: it must state the tensor's shape.")
    if entry.get("dtype") != "U8" or len(shape) not in (4, 5) or shape[-3] != 3 or min(shape) < 1:
        got = f"{str(entry.get('dtype'))[:20]} of shape {shape[:8]}"
        raise RefusedError(422, f"media must be uint8 (U8) RGB of shape (B, 3, H, W) or (B, F, 3, H, W). Got {got}.")
    _refuse_many(shape[0], limits)
    _claim(shape, limits, reserve)
    size = math.prod(shape)
    if entry.get("data_offsets") != [0, size] or len(body) != 8 + length + size:
        raise RefusedError(
            400, "The body is not a whole safetensors file: its tensor does not fill it from end to end."
        )
    held = body if isinstance(body, bytearray) else bytearray(body)  # a tensor on bytes could change them
    media = torch.frombuffer(held, dtype=torch.uint8, count=size, offset=8 + length).reshape(shape)
    side = {}
    for key, text in notes.items():
        data = str(text).encode("utf-8", "surrogatepass")
        side[key] = _json(data, f"{key} in the safetensors header", limits, reserve)
    return side, media


def _refuse_many(count: int, limits: Limits) -> None:
    if count > limits.max_samples:
        raise RefusedError(413, f"A request may have {limits.max_samples} samples. Got {count}. Send fewer at once.")


def _claim(shape: Sequence[int], limits: Limits, reserve: Reserve) -> None:
    """Refuse media that are too large, and reserve the memory of others."""
    height, width = shape[-2:]
    if not 0 < height * width <= limits.max_pixels:
        raise RefusedError(
            413, f"An image may have 1 to {limits.max_pixels} pixels. Got {width} x {height}. Make it smaller."
        )
    size = min(math.prod(shape), 10**15)
    if size > limits.max_media_mb * 1e6:
        raise RefusedError(
            413, f"A request's media may take {limits.max_media_mb:g} MB. Got {size / 1e6:.0f} MB. Send fewer at once."
        )
    reserve(size)


def _kind_of(value: Any) -> str:
    words = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return words.get(type(value), "a number")
