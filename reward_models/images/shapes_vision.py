"""Finding flat shapes in small images: geometry, palette and perception of the embedded world.

Perception measures and judges nothing: it returns what it found with its quality, and the scorers of
`reward_models.images.shapes` apply tolerances. A whole batch is measured at once, and every number of an image is that
image's alone, whatever its batch. The analytic distance of a shape's outline lives here once: the renderer of
`diffrl.data.shapes` draws with it and the checker compares outlines with it.

Lengths are in pixels in this file unless a name says otherwise. Letters: B images, N objects, C colours, S shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Pictures = NDArray[np.uint8]

PALETTE: Mapping[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "green": (40, 150, 60),
    "blue": (40, 80, 214),
    "yellow": (242, 205, 40),
    "purple": (150, 50, 170),
    "black": (24, 24, 24),
    "orange": (245, 125, 20),
}
SHAPES = ("circle", "square", "triangle")
BACKGROUND = (232, 232, 232)

MIN_OBJECT_AREA = 0.012
"""Components smaller than this fraction of the image are clutter, not objects."""

_FOREGROUND = 70.0  # RGB distance (0-441) from the background above which a pixel is certainly foreground
_NOISE = 24.0  # below this a pixel is certainly background
_SAME_HUE = math.cos(math.radians(14))  # of two neighbours' offsets from the background: the same object
_TRIANGLE_SIDE = math.sqrt(4 / math.sqrt(3))  # of an equilateral triangle of unit area
_REACH = 3 / 32  # of the image's side: how far from an object the outline is looked for that it should have
_PERIMETER = np.array([2 * math.sqrt(math.pi), 4, 3 * _TRIANGLE_SIDE], dtype=np.float32)  # of `SHAPES` of unit area
_CHUNK = 512 * 32 * 32  # pixels measured at once, which bounds memory


@dataclass(frozen=True)
class Objects:
    """The objects of B images, each measured; N in all, those of an image together, its largest first.

    Args:
        image: (N,) int64, the image of each.
        hue: (N, C) float32 in [0, 1], how well its interior fits each colour of the palette: 1 if every pixel is it, 0
            if every pixel is as near or nearer to another one, see `color_fit`.
        outline: (N, S) float32, mean distance between its outline and that of each of `SHAPES` at its own centre and
            area, in pixels of an image of 32: the area between the two, divided by the length of that shape's.
        worst: (N, S) float32, the greatest of these distances in pixels of an image of 32: what a horn or a bite is.
        x: (N,) float32 centre, from the left, as a fraction of the image's width.
        y: (N,) float32 centre, from the top, as a fraction of its height.
        area: (N,) float32, as a fraction of the image.
        cut: (N,) bool, whether the image's edge cuts it.
    """

    image: NDArray[np.int64]
    hue: Array
    outline: Array
    worst: Array
    x: Array
    y: Array
    area: Array
    cut: NDArray[np.bool_]


@dataclass(frozen=True)
class Perception:
    """B images, measured.

    Args:
        objects: what stands out.
        background_error: (B,) float32, RGB distance of the border's median colour to `BACKGROUND`.
        clutter: (B,) float32, foreground that belongs to no object, as a fraction of the image.
    """

    objects: Objects
    background_error: Array
    clutter: Array


def signed_distance(shape: str, dx: Array, dy: Array, area: Array | float) -> Array:
    """Return distance to the outline of an upright shape, negative inside.

    Args:
        shape: one of `SHAPES`.
        dx: from the shape's centroid to the right, broadcastable with `dy`.
        dy: from the centroid downwards.
        area: in square pixels; equal for all shapes of a size, so that size does not tell them apart.

    Returns:
        The broadcast shape of the arguments, float32.
    """
    side = np.sqrt(np.asarray(area, dtype=np.float32))
    if shape == "circle":
        return np.hypot(dx, dy) - side / math.sqrt(math.pi)
    if shape == "square":
        qx, qy = np.abs(dx) - side / 2, np.abs(dy) - side / 2
        return np.hypot(np.maximum(qx, 0), np.maximum(qy, 0)) + np.minimum(np.maximum(qx, qy), 0)
    inradius = _TRIANGLE_SIDE * side / (2 * math.sqrt(3))
    flank = np.float32(math.cos(math.pi / 6)) * np.abs(dx) - np.float32(math.sin(math.pi / 6)) * dy
    return np.maximum(dy, flank) - inradius


def coverage(shape: str, x: float, y: float, area: float, height: int, width: int) -> Array:
    """Return anti-aliased coverage of an upright shape by signed distance, clip(1/2 - distance, 0, 1).

    Args:
        shape: one of `SHAPES`.
        x: centroid from the left.
        y: centroid from the top.
        area: in square pixels.
        height: of the image.
        width: of the image.

    Returns:
        (height, width) float32 in [0, 1].
    """
    dx = np.arange(width, dtype=np.float32) + np.float32(0.5 - x)  # (W,)
    dy = (np.arange(height, dtype=np.float32) + np.float32(0.5 - y))[:, None]  # (H, 1)
    return np.clip(0.5 - signed_distance(shape, dx, dy, area), 0, 1).astype(np.float32)


def _dot(a: Array, b: Array) -> Array:
    """Multiply vectors of three over the last axis; three products are faster than a sum over so short an axis."""
    product: Array = a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]
    return product


_LINEAR = np.where(
    (_level := np.arange(256) / 255) <= 0.04045, _level / 12.92, ((_level + 0.055) / 1.055) ** 2.4
).astype(np.float32)  # sRGB to linear light
_TO_CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]], dtype=np.float32,
)  # fmt: skip
_TO_LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]], dtype=np.float32,
)  # fmt: skip


def oklab(rgb: Pictures) -> Array:
    """Return perceptual colours of Ottosson's Oklab (2020), in which equal distances look about equally far.

    Args:
        rgb: (..., 3) uint8 sRGB.

    Returns:
        (..., 3) float32: lightness in [0, 1], green-red, blue-yellow.
    """
    linear = _LINEAR[rgb]
    cones = np.cbrt(np.stack([_dot(linear, row) for row in _TO_CONES], -1))
    return np.stack([_dot(cones, row) for row in _TO_LAB], -1)


_PALETTE_LAB = oklab(np.array(list(PALETTE.values()), dtype=np.uint8))  # (C, 3)


def color_fit(rgb: Pictures) -> Array:
    """Return how well colours fit each name of the palette, against the others.

    With d the perceptual distance to a name and e that to the nearest other name, the fit is 1 - 2 d / (d + e), at
    least 0: 1 at the named colour, 1/2 where the other is three times as far, 0 from half-way on.

    Args:
        rgb: (P, 3) uint8.

    Returns:
        (P, C) float32 in [0, 1].
    """
    difference = oklab(rgb)[:, None] - _PALETTE_LAB
    distance = np.sqrt(_dot(difference, difference))  # (P, C)
    ordered = np.sort(distance, axis=1)
    other = np.where(distance == ordered[:, :1], ordered[:, 1:2], ordered[:, :1])
    return np.maximum(1 - 2 * distance / (distance + other), 0)


def perceive(images: Pictures) -> Perception:
    """Measure images; a batch is remembered, so that two scorers of the same images see them once.

    Args:
        images: (B, H, W, 3) uint8 RGB.
    """
    if images.size > _MOST_REMEMBERED:
        return _perceive(images)
    return _remembered(images.tobytes(), images.shape)


_MOST_REMEMBERED = 8_000_000


@lru_cache(maxsize=8)
def _remembered(data: bytes, shape: tuple[int, ...]) -> Perception:
    return _perceive(np.frombuffer(data, dtype=np.uint8).reshape(shape))


def _perceive(images: Pictures) -> Perception:
    step = max(1, _CHUNK // max(1, images.shape[1] * images.shape[2]))
    parts = [_measure(images[i : i + step]) for i in range(0, len(images), step)]
    return parts[0] if len(parts) == 1 else _joined(parts, step)


def _joined(parts: Sequence[Perception], step: int) -> Perception:
    """Return perceptions of `step` images each, the last of fewer, as one."""
    columns = {
        f.name: np.concatenate([getattr(part.objects, f.name) for part in parts])
        for f in fields(Objects)
        if f.name != "image"
    }
    owner = np.concatenate([part.objects.image + i * step for i, part in enumerate(parts)])
    return Perception(
        Objects(image=owner, **columns),
        np.concatenate([part.background_error for part in parts]),
        np.concatenate([part.clutter for part in parts]),
    )


def _measure(images: Pictures) -> Perception:
    count, height, width, _ = images.shape
    rgb = images.astype(np.float32)
    border = np.concatenate([rgb[:, 0], rgb[:, -1], rgb[:, 1:-1, 0], rgb[:, 1:-1, -1]], axis=1)
    background = np.median(border, axis=1)  # (B, 3)
    offset = rgb - background[:, None, None]
    distance = np.sqrt(_dot(offset, offset))  # (B, H, W)
    which = _find(offset, distance)
    objects = _measure_objects(images, offset, which)
    covered = _grown(_grown(which >= 0))
    stray = np.where((distance > _NOISE) & ~covered, np.minimum(distance / 128, 1), 0)
    error = background - np.array(BACKGROUND, dtype=np.float32)
    return Perception(
        objects, np.sqrt(_dot(error, error)), stray.reshape(count, -1).sum(-1) / np.float32(height * width)
    )


def _find(offset: Array, distance: Array) -> NDArray[np.int32]:
    """Return the object of each pixel, (B, H, W), -1 for none: neighbours of one hue belong together.

    What counts is the direction of a colour from the background, not how far it is: the soft edge of an object lies on
    the way to the background and so in the same direction, another object that touches it does not.
    """
    count, height, width = distance.shape
    core = distance > _FOREGROUND
    index = np.cumsum(core.ravel()).reshape(core.shape) - 1  # number of each core pixel
    hue = offset / np.maximum(distance, 1)[..., None]
    right = core[:, :, :-1] & core[:, :, 1:] & (_dot(hue[:, :, :-1], hue[:, :, 1:]) > _SAME_HUE)
    down = core[:, :-1] & core[:, 1:] & (_dot(hue[:, :-1], hue[:, 1:]) > _SAME_HUE)
    start = np.concatenate([index[:, :, :-1][right], index[:, :-1][down]])
    end = np.concatenate([index[:, :, 1:][right], index[:, 1:][down]])
    total = int(core.sum())
    which = np.full(core.shape, -1, dtype=np.int32)
    if not total:
        return which
    from scipy.sparse import coo_array  # here, because the world's prompts need this file and no graphs
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(start), dtype=np.int8), (start, end)), shape=(total, total))
    _, labels = connected_components(graph, directed=False)
    sizes = np.bincount(labels)
    image = np.nonzero(core)[0]
    home = np.zeros(len(sizes), dtype=np.int64)
    home[labels] = image
    large = np.nonzero(sizes >= MIN_OBJECT_AREA * height * width)[0]
    order = large[np.lexsort((large, -sizes[large], home[large]))]
    number = np.full(len(sizes), -1, dtype=np.int32)
    number[order] = np.arange(len(order))
    which[core] = number[labels]
    return which


def _measure_objects(images: Pictures, offset: Array, which: NDArray[np.int32]) -> Objects:
    _, height, width = which.shape
    total = int(which.max(initial=-1)) + 1
    owner, rows, columns = np.nonzero(which >= 0)
    number = which[owner, rows, columns]
    image = np.zeros(total, dtype=np.int64)
    image[number] = owner
    cut = np.zeros(total, dtype=np.bool_)
    cut[number[(rows == 0) | (rows == height - 1) | (columns == 0) | (columns == width - 1)]] = True

    inner = _interior(which)[owner, rows, columns]
    inner |= (np.bincount(number[inner], minlength=total) == 0)[number]  # too thin to have an inside
    inside = number[inner]
    weight = np.bincount(inside, minlength=total).astype(np.float32)

    def mean(values: Array) -> Array:  # (P, K) of the inner pixels to (N, K)
        sums = [np.bincount(inside, weights=column, minlength=total) for column in values.T]
        return (np.stack(sums, -1) / weight[:, None]).astype(np.float32)

    at = owner[inner], rows[inner], columns[inner]
    hue, span = mean(color_fit(images[at])), mean(offset[at])

    near, region = _surroundings(which, image)
    item, rows, columns = np.nonzero(near)  # pixels around each object, (P,), one object after the other
    colors = offset[image[item], rows, columns]  # (P, 3)
    scale = span / np.maximum(_dot(span, span), 1)[:, None]
    soft = np.clip(_dot(colors, scale[item]), 0, 1) * region[item, rows, columns]  # how much of a pixel is the object's

    def summed(values: Array) -> Array:
        return np.bincount(item, weights=values, minlength=total).astype(np.float32)

    right, down = columns.astype(np.float32) + 0.5, rows.astype(np.float32) + 0.5
    area = np.maximum(summed(soft), 1e-6)
    x, y = summed(soft * right) / area, summed(soft * down) / area
    dx, dy = right - x[item], down - y[item]
    sharp = np.clip(2 * soft - 0.5, 0, 1)  # undoes the blur of a decoder; exact edges barely change
    starts = np.searchsorted(item, np.arange(total))
    outline, worst = [], []
    for shape in SHAPES:
        distance = signed_distance(shape, dx, dy, area[item])
        off = np.abs(sharp - np.clip(0.5 - 2 * distance, 0, 1))
        outline.append(summed(off))
        worst.append(np.maximum.reduceat(off * (np.abs(distance) + 0.5), starts) if total else summed(off))
    return Objects(
        image,
        hue,
        np.stack(outline, -1) / (np.sqrt(area)[:, None] * _PERIMETER) * np.float32(32 / max(height, width)),
        np.stack(worst, -1) * np.float32(32 / max(height, width)),
        x / np.float32(width),
        y / np.float32(height),
        area / np.float32(height * width),
        cut,
    )


def _surroundings(which: NDArray[np.int32], image: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where to look for each object, and what of that can be it or its soft edge; (N, H, W) each."""
    side = max(which.shape[1:])
    around = which[image]
    inside = around == np.arange(len(image), dtype=np.int32)[:, None, None]
    near = edge = _grown(inside)
    for _ in range(max(2, round(_REACH * side)) - 1):
        near = _grown(near)
    return near, edge & (inside | (around < 0))


def _interior(which: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return pixels whose four neighbours belong to the same object, (B, H, W)."""
    inner = which >= 0
    for axis in (1, 2):
        same = np.diff(which, axis=axis) == 0
        first, last = [(0, 0)] * 3, [(0, 0)] * 3
        first[axis], last[axis] = (1, 0), (0, 1)
        inner = inner & np.pad(same, first) & np.pad(same, last)
    return inner


def _grown(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask and its eight neighbours, over the last two axes."""
    grown = mask.copy()
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    wide = grown.copy()
    wide[:, :, 1:] |= grown[:, :, :-1]
    wide[:, :, :-1] |= grown[:, :, 1:]
    return wide
