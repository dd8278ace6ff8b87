"""Videos on disk and in grids. A clip is a uint8 RGB tensor (F, 3, H, W)."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from diffrl.models.images import from_pil, save_webp_lossless, to_pil

SHOWN = 4
"""Frames of a clip in a grid of stills, two by two."""
GAP, PAPER = 2, 250
"""Pixels between them, and their grey."""
STILL_SIZE = 140
"""Side of such a still in a grid, in pixels."""


def save_media(media: Tensor, path: Path, fps: float) -> None:
    """Write a picture (3, H, W) or a clip (F, 3, H, W) as WebP, so that reading it gives the same bytes.

    Args:
        media: uint8 RGB.
        path: ends in .webp.
        fps: frames per second of a clip.
    """
    if media.ndim == 3:
        save_webp_lossless(media, path)
        return
    first, *others = (to_pil(frame) for frame in media)
    temporary = path.with_name(f".{path.name}.tmp")
    # Encoders merge equal frames into one that is shown longer; the count brings them back.
    first.save(
        temporary,
        format="WEBP",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        lossless=True,
        quality=20,
        method=2,
        xmp=f"frames={len(media)}".encode(),
    )
    os.replace(temporary, path)


def read_media(image: Image.Image) -> Tensor:
    """What `save_media` wrote: (3, H, W), or (F, 3, H, W) where it was a clip."""
    note = image.info.get("xmp", b"")
    if not note.startswith(b"frames="):
        return from_pil(image)
    count, pieces, durations = int(note.removeprefix(b"frames=")), [], []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        image.load()
        pieces.append(from_pil(image))
        durations.append(image.info.get("duration", 1) or 1)
    unit = sum(durations) / count
    times = [round(duration / unit) for duration in durations]
    return torch.stack([piece for piece, shown in zip(pieces, times, strict=True) for _ in range(shown)])


def still(media: Tensor) -> Tensor:
    """A picture as it is; of a clip, four frames from the first to the last, two by two, in reading order."""
    if media.ndim == 3:
        return media
    first, second, third, last = media[torch.linspace(0, len(media) - 1, SHOWN).round().long()]
    height, width = media.shape[-2:]
    shown = media.new_full((3, 2 * height + GAP, 2 * width + GAP), PAPER)
    shown[:, :height, :width], shown[:, :height, width + GAP :] = first, second
    shown[:, height + GAP :, :width], shown[:, height + GAP :, width + GAP :] = third, last
    return shown
