"""Video files, read within bounds by PyAV; without torch."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from reward_models.common.errors import RewardError
from reward_models.common.image_files import reading, require_fits

UNKNOWN_BYTES = 64 * 2**20
"""What a video is taken to need, decoded, where its header does not say."""


def frame_rows(count: int, frames: int) -> list[int]:
    """Return which of `count` frames are scored: `frames` of them, evenly spaced from the first to the last.

    Row k of n = min(count, frames) is k (count - 1) / (n - 1), rounded to the nearest and halves up; for n = 1 it is
    the middle frame, the earlier one of two. With frames >= count it is every frame once.
    """
    n = min(count, frames)
    if n < 2:
        return [(count - 1) // 2] * n
    return [(2 * k * (count - 1) + (n - 1)) // (2 * (n - 1)) for k in range(n)]


def read_video(path: Path) -> tuple[list[np.ndarray[Any, Any]], float]:
    """Read all frames of a video, turned as its display matrix says.

    Returns:
        Frames (H, W, 3) uint8 RGB, and how many a second.

    Raises:
        RewardError: it cannot be read, is too large (`TooLargeError`), or PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise RewardError(f"Reading {path} needs PyAV. Run: pip install 'diffrl[video]'.") from error
    frames: list[np.ndarray[Any, Any]] = []
    with reading(path, "a video"):
        require_there(path)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            rate = float(stream.average_rate or stream.guessed_rate or 0)
            require_fits(path, stream.height, stream.width, max(1, stream.frames))
            for frame in container.decode(stream):
                require_fits(path, frame.height, frame.width, len(frames) + 1)
                frames.append(_upright(frame.to_ndarray(format="rgb24"), _matrix(frame)))
        if not frames or not rate:
            raise RewardError(f"{path} holds no frames, or does not say how many a second. Is it whole?")
        return frames, rate


def video_bytes(path: Path) -> int:
    """Return about how many bytes a video has, decoded; `UNKNOWN_BYTES` where its header does not say."""
    try:
        import av
    except ImportError:
        return UNKNOWN_BYTES
    try:
        with reading(path, "a video"), av.open(str(path)) as container:
            stream = container.streams.video[0]
            seconds = (container.duration or 0) / av.time_base
            frames = stream.frames or round(seconds * float(stream.average_rate or 0))
            return 3 * stream.width * stream.height * frames or UNKNOWN_BYTES
    except RewardError:
        return UNKNOWN_BYTES


def require_there(path: Path) -> None:
    """Raise FileNotFoundError where there is no file; PyAV says it in other words."""
    path.stat()


def _matrix(frame: Any) -> tuple[int, int, int, int]:
    """Return the display matrix (a, b, c, d) of a frame: what is at (x, y) is shown at (ax + cy, bx + dy)."""
    for data in frame.side_data:
        if data.type.name == "DISPLAYMATRIX":
            a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))
            return a, b, c, d
    return 1, 0, 0, 1


def _upright(pixels: np.ndarray[Any, Any], matrix: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    """Turn and mirror (H, W, 3) as a display matrix says, to the nearest quarter."""
    a, b, c, d = matrix
    if abs(b) + abs(c) > abs(a) + abs(d):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])
