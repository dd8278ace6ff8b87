"""Images that are kept to be looked at beside a tree: small ones, since nothing is computed from them."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import interpolate

SIDE, FRAMES = 512, 16
"""Longest edge, and most frames of a clip."""
IMAGES, CLIPS = 96, 16
"""How many a tree keeps of its predicted images, and of its candidates', where the configuration does not say."""


def illustration(media: Tensor) -> Tensor:
    """Return an image or a clip as it is kept: at most `SIDE` pixels an edge and `FRAMES` frames, on the CPU.

    Args:
        media: (3, H, W) or (F, 3, H, W) uint8. Frames are taken evenly, the first and the last among them.
    """
    if media.ndim > 3 and len(media) > FRAMES:
        last = len(media) - 1
        media = media[[round(i * last / (FRAMES - 1)) for i in range(FRAMES)]]
    height, width = media.shape[-2:]
    scale = SIDE / max(height, width)
    if scale < 1:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        stacked = media.float() if media.ndim > 3 else media.float()[None]  # uint8 is not resized on every device
        small = interpolate(stacked, size, mode="bilinear", antialias=True).round().clamp(0, 255).to(media.dtype)
        media = small if media.ndim > 3 else small[0]
    return media.cpu()


def pace(media: Tensor) -> float:
    """Return the share of its frames that a clip's illustration keeps; 1 of an image."""
    return min(1.0, FRAMES / len(media)) if media.ndim > 3 else 1.0


def most(asked: int | None, media: Tensor) -> int:
    """Return how many predicted images a tree keeps, and how many of its candidates'.

    Args:
        asked: track.trees.pictures.
        media: (3, H, W) or (F, 3, H, W), any of them.
    """
    if asked is not None:
        return asked
    return CLIPS if media.ndim > 3 else IMAGES
