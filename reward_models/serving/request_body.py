"""Reading of requests by the scoring service: every field is checked, and nothing large is made before it is allowed.

The counterpart of `encode_request` in wire.py. Whatever the bytes are, the end is a batch or a `RefusedError`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from reward_models.base import RewardBatch
from reward_models.errors import RewardError
from reward_models.serving.lossless import (
    HugePictureError,
    LossyPictureError,
    UnreadablePictureError,
    decode_picture,
    picture_size,
)
from reward_models.serving.wire import JSON, SAFETENSORS, SIDE, Limits, RefusedError


def decode_request(
    content_type: str, body: bytes, limits: Limits, reserve: Callable[[int], None] = lambda size: None
) -> RewardBatch:
    """The batch in the body of a request.

    Args:
        content_type: of the request; what follows a semicolon is ignored.
        body: its bytes.
        limits: of the service.
        reserve: told how many bytes the media will take before they are decoded; may raise a `RefusedError`.

    Raises:
        RefusedError: 400 not JSON or safetensors, 413 too much, 415 another type or a lossy picture, 422 wrong fields.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        side = _json(body, "The body")
        if not isinstance(side, dict):
            raise RefusedError(400, f"The body must be a JSON object with media and prompts. Got {_kind_of(side)}.")
        media = _media_of_files(side.pop("media", None), limits, reserve)
    elif kind == SAFETENSORS:
        side, media = _safetensors(body, limits, reserve)
    else:
        raise RefusedError(415, f"A request is {JSON} or {SAFETENSORS}. Got {kind[:80] or 'no content type'!r}.")
    return _batch(media, side)


def _batch(media: Tensor, side: Mapping[str, Any]) -> RewardBatch:
    """Check the fields beside the media."""
    unknown = sorted(set(side) - set(SIDE))
    if unknown:
        raise RefusedError(
            422, f"A request has media, {', '.join(SIDE)}. Got also {', '.join(map(repr, unknown))[:200]}."
        )
    prompts, fps = side.get("prompts", []), side.get("fps")
    metadata, groups = ([] if side.get(name) is None else side[name] for name in ("metadata", "groups"))
    for name, values, kind in (("prompts", prompts, str), ("metadata", metadata, dict), ("groups", groups, int)):
        if not isinstance(values, list) or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
            word = {str: "texts", dict: "objects", int: "whole numbers"}[kind]
            raise RefusedError(422, f"{name} must be a list of {word}, one a sample. Got {_kind_of(values)}.")
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps <= 1e6):
        raise RefusedError(422, f"fps must be a number > 0, or null. Got {fps!r}.")
    try:
        return RewardBatch(media, prompts, metadata, None if fps is None else float(fps), groups)
    except RewardError as error:
        raise RefusedError(422, str(error)) from None


def _json(data: bytes | str, what: str) -> Any:
    def refuse(token: str) -> None:
        raise ValueError(f"{token} is not JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # wrong JSON, wrong UTF-8, or nested too deep
        raise RefusedError(400, f"{what} is not valid JSON: {str(error)[:120]}.") from None


def _media_of_files(files: Any, limits: Limits, reserve: Callable[[int], None]) -> Tensor:
    if not isinstance(files, list) or not files:
        raise RefusedError(
            422, f"media must be a list of base64 pictures, or of lists of frames. Got {_kind_of(files)}."
        )
    _refuse_many(len(files), limits)
    clips = [file if isinstance(file, list) else [file] for file in files]
    if len({(isinstance(file, list), len(clip)) for file, clip in zip(files, clips, strict=True)}) > 1:
        raise RefusedError(422, "media must be all pictures, or all clips of one length. Send others apart.")
    if not clips[0]:
        raise RefusedError(422, "A clip must have at least one frame. Got an empty list.")
    raw = [[_base64(file, row) for file in clip] for row, clip in enumerate(clips)]
    sizes = {_told(row, picture_size, file) for row, clip in enumerate(raw) for file in clip}
    if len(sizes) > 1:
        told = ", ".join(f"{width}x{height}" for width, height in sorted(sizes)[:4])
        raise RefusedError(422, f"All pictures of a request must have one size. Got {told}. Send each size on its own.")
    ((width, height),) = sizes
    _claim((len(raw), len(raw[0]), 3, height, width), limits, reserve)
    media = torch.stack(
        [
            torch.stack([_told(row, decode_picture, file, limits.max_pixels) for file in clip])
            for row, clip in enumerate(raw)
        ]
    )
    return media if isinstance(files[0], list) else media[:, 0]


def _base64(text: Any, row: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise RefusedError(422, f"Picture {row} must be a text in base64 (RFC 4648). Got {_kind_of(text)}.") from None


def _told(row: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call, and say which picture was at fault."""
    try:
        return function(*arguments)
    except (LossyPictureError, HugePictureError, UnreadablePictureError) as error:
        status = 415 if isinstance(error, LossyPictureError) else 413 if isinstance(error, HugePictureError) else 422
        raise RefusedError(status, f"Picture {row} {error}.") from None


def _safetensors(body: bytes, limits: Limits, reserve: Callable[[int], None]) -> tuple[dict[str, Any], Tensor]:
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise RefusedError(400, "The body is not a whole safetensors file.")
    header = _json(body[8 : 8 + length], "The header of the safetensors file")
    if not isinstance(header, dict) or set(header) - {"__metadata__"} != {"media"}:
        raise RefusedError(422, "The safetensors file must hold one tensor, `media`, uint8 RGB (B, 3, H, W).")
    entry, notes = header["media"], header.get("__metadata__", {})
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if not isinstance(shape, list) or not all(type(n) is int for n in shape) or not isinstance(notes, dict):
        raise RefusedError(400, "The header of the safetensors file is wrong: it must state the tensor's shape.")
    if entry.get("dtype") != "U8" or len(shape) not in (4, 5) or shape[-3] != 3 or min(shape) < 1:
        told = f"{str(entry.get('dtype'))[:20]} of shape {shape[:8]}"
        raise RefusedError(422, f"media must be uint8 (U8) RGB of shape (B, 3, H, W) or (B, F, 3, H, W). Got {told}.")
    _refuse_many(shape[0], limits)
    _claim(shape, limits, reserve)
    try:
        media = safetensors.torch.load(body)["media"]
    except Exception as error:  # the library raises its own, of several kinds, for offsets that do not fit
        raise RefusedError(400, f"The body is not a whole safetensors file: {str(error)[:120]}.") from None
    return {key: _json(str(text), f"{key} in the safetensors header") for key, text in notes.items()}, media


def _refuse_many(count: int, limits: Limits) -> None:
    if count > limits.max_samples:
        raise RefusedError(413, f"A request may have {limits.max_samples} samples. Got {count}. Send fewer at once.")


def _claim(shape: Sequence[int], limits: Limits, reserve: Callable[[int], None]) -> None:
    """Refuse media that are too large, and reserve the memory of others."""
    height, width = shape[-2:]
    if not 0 < height * width <= limits.max_pixels:
        raise RefusedError(
            413, f"A picture may have 1 to {limits.max_pixels} pixels. Got {width} x {height}. Make it smaller."
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
