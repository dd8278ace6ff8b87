"""Finding flat shapes in small pictures: geometry, palette and perception of the embedded world.

Perception measures and judges nothing: it returns what it found with its quality, and the scorers of
`reward_models.images.shapes` apply tolerances. The analytic coverage of a shape lives here once; the renderer of
`diffrl.data.shapes` draws with it and the checker matches templates with it.

Lengths are in pixels in this file unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[np.float32]

PALETTE: Mapping[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "green": (40, 150, 60),
    "blue": (40, 80, 214),
    "yellow": (242, 205, 40),
    "purple": (150, 50, 170),
    "black": (24, 24, 24),
}
SHAPES = ("circle", "square", "triangle")
BACKGROUND = (232, 232, 232)

MIN_OBJECT_AREA = 0.012
"""Components smaller than this fraction of the picture are clutter, not objects."""

_FOREGROUND = 60.0  # RGB distance (0-441) from the background above which a pixel is certainly foreground
_NOISE = 24.0  # below this a pixel is certainly background
_SAME_COLOR = 60.0  # RGB distance within which a single pixel still has a palette colour
_PALETTE = np.array(list(PALETTE.values()), dtype=np.float32)  # (6, 3)
_EIGHT = np.ones((3, 3), dtype=bool)
_TRIANGLE_SIDE = math.sqrt(4 / math.sqrt(3))  # of an equilateral triangle of unit area


@dataclass(frozen=True)
class FoundObject:
    """One connected object, measured.

    Args:
        color: index of the nearest palette colour.
        color_error: RGB distance (0-441) of the interior's median to that palette colour.
        purity: share of interior pixels within an RGB distance of 60 of that palette colour, in [0, 1].
        overlaps: intersection over union with the template of each of `SHAPES`, at the object's own centre and area.
        x: centre, from the left, as a fraction of the picture's width.
        y: centre, from the top, as a fraction of the picture's height.
        area: as a fraction of the picture.
        touches_border: True if the object is cut by the picture's edge.
    """

    color: int
    color_error: float
    purity: float
    overlaps: tuple[float, ...]
    x: float
    y: float
    area: float
    touches_border: bool


@dataclass(frozen=True)
class Perception:
    """A picture, measured.

    Args:
        objects: what stands out, largest first.
        background_error: RGB distance of the border's median colour to `BACKGROUND`.
        clutter: foreground that belongs to no object, as a fraction of the picture.
    """

    objects: tuple[FoundObject, ...]
    background_error: float
    clutter: float


def coverage(shape: str, x: float, y: float, area: float, height: int, width: int) -> Array:
    """Anti-aliased coverage of an upright shape by signed distance, clip(1/2 - distance, 0, 1).

    Args:
        shape: one of `SHAPES`.
        x: centroid from the left.
        y: centroid from the top.
        area: in square pixels; equal for all shapes, so that size does not tell them apart.
        height: of the picture.
        width: of the picture.

    Returns:
        (height, width) float32 in [0, 1].
    """
    dx = np.arange(width, dtype=np.float32) + 0.5 - x  # (W,)
    dy = (np.arange(height, dtype=np.float32) + 0.5 - y)[:, None]  # (H, 1)
    if shape == "circle":
        distance = np.hypot(dx, dy) - math.sqrt(area / math.pi)
    elif shape == "square":
        half = math.sqrt(area) / 2
        qx, qy = np.abs(dx) - half, np.abs(dy) - half
        outside = np.hypot(np.maximum(qx, 0), np.maximum(qy, 0))
        distance = outside + np.minimum(np.maximum(qx, qy), 0)
    else:
        inradius = _TRIANGLE_SIDE * math.sqrt(area) / (2 * math.sqrt(3))
        flank = math.cos(math.pi / 6) * np.abs(dx) - math.sin(math.pi / 6) * dy
        distance = np.maximum(dy, flank) - inradius
    return np.clip(0.5 - distance, 0, 1).astype(np.float32)


def perceive(picture: NDArray[np.uint8]) -> Perception:
    """Find the objects of one picture.

    Pictures of up to 64 KiB are remembered, so that two scorers of the same picture see it once.

    Args:
        picture: (H, W, 3) uint8 RGB.
    """
    height, width, _ = picture.shape
    data = picture.tobytes()
    return _remembered(data, height, width) if len(data) <= 65536 else _perceive(data, height, width)


def _perceive(data: bytes, height: int, width: int) -> Perception:
    picture = np.frombuffer(data, dtype=np.uint8).reshape(height, width, 3).astype(np.float32)
    border = np.concatenate([picture[0], picture[-1], picture[1:-1, 0], picture[1:-1, -1]])
    background = np.median(border, axis=0)
    offset = picture - background
    distance = np.sqrt(np.einsum("hwc,hwc->hw", offset, offset))
    labels, count = ndimage.label(distance > _FOREGROUND)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    unexplained = distance > _NOISE
    found = []
    for label in np.argsort(-sizes, kind="stable") + 1:
        if sizes[label - 1] < MIN_OBJECT_AREA * height * width:
            break
        region = ndimage.binary_dilation(labels == label, _EIGHT) & ((labels == label) | (labels == 0))
        found.append(_measure(picture, background, labels == label, region))
        unexplained &= ~ndimage.binary_dilation(region, _EIGHT)
    clutter = float(np.minimum(distance[unexplained] / 128.0, 1.0).sum()) / (height * width)
    background_error = float(np.linalg.norm(background - np.array(BACKGROUND, dtype=np.float32)))
    return Perception(tuple(found), background_error, clutter)


_remembered = lru_cache(maxsize=1024)(_perceive)


def _measure(picture: Array, background: Array, core: NDArray[np.bool_], region: NDArray[np.bool_]) -> FoundObject:
    """Measure the component `core`, (H, W); `region` is the same with its soft edge."""
    height, width = core.shape
    inner = ndimage.binary_erosion(core)
    interior = picture[inner if inner.any() else core]  # (K, 3)
    median = np.median(interior, axis=0)
    errors = np.linalg.norm(_PALETTE - median, axis=1)
    color = int(errors.argmin())
    purity = float((np.linalg.norm(interior - _PALETTE[color], axis=1) < _SAME_COLOR).mean())

    span = median - background
    soft = np.clip((picture - background) @ span / max(float(span @ span), 1.0), 0, 1) * region  # (H, W)
    area = float(soft.sum())
    x = float(soft.sum(0) @ (np.arange(width) + 0.5)) / area
    y = float(soft.sum(1) @ (np.arange(height) + 0.5)) / area
    sharp = np.clip(2 * soft - 0.5, 0, 1)  # undoes the blur of a decoder; exact edges barely change
    overlaps = tuple(_overlap(sharp, coverage(shape, x, y, area, height, width)) for shape in SHAPES)
    edge = bool(core[0].any() or core[-1].any() or core[:, 0].any() or core[:, -1].any())
    return FoundObject(
        color, float(errors[color]), purity, overlaps, x / width, y / height, area / (height * width), edge
    )


def _overlap(mask: Array, template: Array) -> float:
    """Intersection over union of two soft masks, (H, W) in [0, 1] each."""
    sharp = np.clip(2 * template - 0.5, 0, 1)
    union = float(np.maximum(mask, sharp).sum())
    return float(np.minimum(mask, sharp).sum()) / union if union > 0 else 0.0
