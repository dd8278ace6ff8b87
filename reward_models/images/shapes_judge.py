"""What a prompt of the world of coloured shapes asks for, compared with what was seen in the image.

Grades and verdicts of `reward_models.images.shapes`; `Tolerances` decide what still passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from reward_models.base import RewardOutput, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.images.shapes_grammar import COLORS, MOST_THINGS, RELATIONS, SceneSpec
from reward_models.images.shapes_vision import SHAPES, Array, Objects, Perception

PARTS = ("count", "colour", "shape", "size", "binding", "relation", "clean", "partial", "strict")

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Tolerances:
    """What still passes strictly. Fits are in [0, 1], lengths fractions of the image's side.

    Args:
        color_fit: least mean fit of an object's interior to its asked colour against the others
            (`shapes_vision.color_fit`): 0.5 = on average three times as near to it as to any other.
        shape_fit: least fit of its outline to the asked shape against the others: 1 - 2 d / (d + e), with d and e the
            mean distances to the outlines of the asked shape and of the nearest other one. Below a radius of
            `fit_radius` less is asked, by the fourth power of the radius: there the shapes differ by less than a blur.
        fit_radius: see `shape_fit`.
        outline: greatest such distance to the asked shape, in pixels of an image of 32.
        horn: greatest single deviation from it, in pixels of an image of 32.
        small: greatest radius (of a circle of the same area) of what is asked for small.
        large: least radius of what is asked for large.
        min_radius: least radius of any object.
        max_radius: greatest radius of any object.
        separation: least distance of two objects along a relation's axis; it must also exceed 0.7 of that along the
            other, so that on the diagonal both relations hold.
        background_error: greatest RGB distance (0-441) of the background to the world's light grey.
        clutter: greatest amount of foreground outside the objects, as a fraction of the image.
    """

    color_fit: float = 0.5
    shape_fit: float = 0.3
    fit_radius: float = 0.125
    outline: float = 0.225
    horn: float = 0.75
    small: float = 0.125
    large: float = 0.15
    min_radius: float = 0.08
    max_radius: float = 0.195
    separation: float = 0.15
    background_error: float = 20.0
    clutter: float = 0.004

    def __post_init__(self) -> None:
        """Refuse negative tolerances, and radii that others are divided by and that are nothing."""
        wrong = {f.name: getattr(self, f.name) for f in fields(self) if not getattr(self, f.name) >= 0}
        wrong |= {name: 0.0 for name in ("min_radius", "fit_radius") if getattr(self, name) == 0}
        if wrong:
            raise RewardError(
                f"Tolerances of the shapes scorer must be >= 0; min_radius and fit_radius > 0. Got {wrong}."
            )


@dataclass(frozen=True)
class Verdicts:
    """What was asked for compared with what was seen, for B images.

    Args:
        parts: per name of `PARTS`, (B,) float32 in [0, 1]; NaN where a prompt asks for nothing of the kind.
            count: 1 - |found - asked| / asked, at least 0.
            colour, shape, size: mean fit of the asked objects, extra objects counting as 0. Size only where asked for.
            binding: the same of the product of an object's fits.
            relation: mean over the relations of how clearly they hold between objects of the asked colours.
            clean: 1 if the background is the world's and nothing lies beside the objects, less the less so.
            partial: the mean of those that apply.
            strict: 1 if everything passes, else 0.
        reasons: B sentences, what fails strictly ("shape: 1 of 2"); None where all is right.
    """

    parts: Mapping[str, Array]
    reasons: Sequence[str | None]

    def output(self, summary: str, errors: Sequence[str | None]) -> RewardOutput:
        """Return a scorer's answer, with the reasons as notes.

        Args:
            summary: the part that is the score.
            errors: B messages of samples that could not be judged, None for the others.
        """
        columns = {name: part.tolist() for name, part in self.parts.items()}
        rows = [
            (math.nan, {}, error) if error else (columns[summary][b], {name: c[b] for name, c in columns.items()}, None)
            for b, error in enumerate(errors)
        ]
        notes = [None if error else reason for error, reason in zip(errors, self.reasons, strict=True)]
        return output_of_rows(rows, list(columns), notes)


def judge(scenes: Sequence[SceneSpec], seen: Perception, tolerances: Tolerances) -> Verdicts:
    """Compare what was asked with what was seen.

    Args:
        scenes: what the prompts of B images ask for.
        seen: what the B images show.
        tolerances: what passes strictly.
    """
    asked = _Asked.of(scenes)
    fits = _fits(asked, seen.objects, tolerances)
    match, counts = _assign(asked, fits)
    total = np.maximum(asked.count, counts)

    def share(fit: Array) -> Array:  # (B, A, K) to the mean over asked and extra objects
        mean: Array = np.where(match, fit, 0).sum((1, 2)) / total
        return mean

    centre = {name: np.where(match, value, 0).sum(2) for name, value in (("x", fits.x), ("y", fits.y))}  # (B, A)
    right_color = np.where(match, fits.color, 0).sum(2)
    relation, holds = _relations(asked, centre, right_color, np.asarray(match.any(2)), tolerances)
    dirt = np.maximum((seen.background_error - 5) / 30, (seen.clutter - 0.0005) / 0.01)
    parts = {
        "count": np.maximum(0, 1 - np.abs(counts - asked.count) / asked.count),
        "colour": share(fits.color),
        "shape": share(fits.shape),
        "size": np.where(asked.sized.any(1), share(fits.size), np.nan),
        "binding": share(fits.color * fits.shape * fits.size),
        "relation": relation,
        "clean": _cleanness(np.maximum(dirt, 0)),
    }
    parts["partial"] = np.nanmean(np.stack(list(parts.values())), axis=0)
    passed = {
        name: (match & good).any(2) | ~asked.real
        for name, good in (("colour", fits.right_color), ("shape", fits.right_shape), ("size", fits.right_size))
    }
    clean = (seen.background_error <= tolerances.background_error) & (seen.clutter <= tolerances.clutter)
    strict = (counts == asked.count) & clean & holds.all(1)
    for good in passed.values():
        strict &= good.all(1)
    parts["strict"] = strict
    matched = match.any(2)
    reasons = [
        None
        if strict[b]
        else _reason(
            scenes[b], int(counts[b]), {k: v[b][matched[b]] for k, v in passed.items()}, holds[b], bool(clean[b])
        )
        for b in range(len(scenes))
    ]
    return Verdicts({name: value.astype(np.float32) for name, value in parts.items()}, reasons)


def _cleanness(dirt: Array) -> Array:
    """Fall from 1 at 0, slower than exponentially at last, so that images of noise differ in float32."""
    return np.where(dirt > 3, 3 * math.exp(-3) / np.maximum(dirt, 3), np.exp(-dirt))


def _reason(scene: SceneSpec, count: int, passed: Mapping[str, Bools], holds: Bools, clean: bool) -> str:
    """Return what fails; of colour, shape and size among the objects that stand for what was asked."""
    asked = len(scene.things)
    reasons = [] if count == asked else [f"{count} {'object' if count == 1 else 'objects'}, not {asked}"]
    reasons += [f"{name}: {int(good.sum())} of {len(good)}" for name, good in passed.items() if not good.all()]
    reasons += [f"not {relation}" for relation, good in zip(scene.relations, holds, strict=False) if not good]
    return "; ".join([*reasons, *([] if clean else ["background not clean"])])


@dataclass(frozen=True)
class _Asked:
    """Scenes as arrays; A = `MOST_THINGS`, R = A - 1.

    count (B,) int64; real (B, A) bool, False beyond the scene's things; color, shape (B, A) int64; sized (B, A) bool;
    small (B, A) bool; axis (B, R, 2) float32, the direction of each relation, 0 where there is none.
    """

    count: NDArray[np.int64]
    real: Bools
    color: NDArray[np.int64]
    shape: NDArray[np.int64]
    sized: Bools
    small: Bools
    axis: Array

    @staticmethod
    def of(scenes: Sequence[SceneSpec]) -> _Asked:
        shape = len(scenes), MOST_THINGS
        color, form = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        sized, small = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        axis = np.zeros((len(scenes), MOST_THINGS - 1, 2), dtype=np.float32)
        for b, scene in enumerate(scenes):
            for a, thing in enumerate(scene.things):
                color[b, a], form[b, a] = _COLOR[thing.color], _SHAPE[thing.shape]
                sized[b, a], small[b, a] = thing.size != "", thing.size == "small"
            for r, relation in enumerate(scene.relations):
                axis[b, r] = RELATIONS[relation]
        count = np.array([len(scene.things) for scene in scenes], dtype=np.int64)
        return _Asked(count, np.arange(MOST_THINGS) < count[:, None], color, form, sized, small, axis)


_ASKEW = 0.7  # along must exceed this share of across for a relation to hold
_COLOR = {name: i for i, name in enumerate(COLORS)}
_SHAPE = {name: i for i, name in enumerate(SHAPES)}


@dataclass(frozen=True)
class _Fits:
    """Every asked thing beside every object seen; K = the most objects of an image, 0 and False beyond its own.

    there (B, K) bool; x, y (B, 1, K); color, shape, size (B, A, K) float32 in [0, 1]; right_...: whether it passes.
    """

    there: Bools
    x: Array
    y: Array
    color: Array
    shape: Array
    size: Array
    right_color: Bools
    right_shape: Bools
    right_size: Bools


def _fits(asked: _Asked, objects: Objects, tolerances: Tolerances) -> _Fits:
    batch = len(asked.count)
    counts = np.bincount(objects.image, minlength=batch)
    width = max(1, int(counts.max(initial=0)))
    first = np.cumsum(counts) - counts
    there = np.arange(width) < counts[:, None]
    row = np.where(there, first[:, None] + np.arange(width), 0)  # (B, K)

    def spread(values: Array | Bools) -> Array:  # (N, ...) to (B, K, ...), 0 where there is no object
        padded = values[row] if len(values) else np.zeros((*row.shape, *values.shape[1:]), dtype=values.dtype)
        return np.where(there.reshape(*there.shape, *[1] * (values.ndim - 1)), padded, 0)

    def asked_of(values: Array, index: NDArray[np.int64]) -> Array:  # (N, C) to (B, A, K)
        return np.take_along_axis(spread(values), index[:, None, :], axis=2).swapaxes(1, 2)

    radius = spread(np.sqrt(objects.area / np.float32(math.pi)))[:, None, :]  # (B, 1, K)
    whole = (spread(~objects.cut) > 0)[:, None, :] & there[:, None, :]
    normal = (radius >= tolerances.min_radius) & (radius <= tolerances.max_radius) & whole
    ordered = np.sort(objects.outline, axis=1)
    other = np.where(objects.outline == ordered[:, :1], ordered[:, 1:2], ordered[:, :1])
    likeness = np.maximum(1 - 2 * objects.outline / np.maximum(objects.outline + other, 1e-6), 0)
    shape = asked_of(likeness, asked.shape) * whole
    color = asked_of(objects.hue, asked.color)
    middle = (tolerances.small + tolerances.large) / 2
    excess = np.where(asked.small[:, :, None], middle - radius, radius - middle) / 0.05 + 0.5
    limit = np.where(asked.small[:, :, None], tolerances.small - radius, radius - tolerances.large) >= 0
    too_small, too_large = radius / tolerances.min_radius, tolerances.max_radius / np.maximum(radius, 1e-6)
    bounded = np.clip(3 * np.minimum(too_small, too_large) - 2, 0, 1)
    sized = asked.sized[:, :, None]
    return _Fits(
        there=there,
        x=spread(objects.x)[:, None, :],
        y=spread(objects.y)[:, None, :],
        color=color,
        shape=shape,
        size=np.where(sized, np.clip(excess, 0, 1), 1) * bounded * there[:, None, :],
        right_color=color >= tolerances.color_fit,
        right_shape=(shape >= tolerances.shape_fit * np.minimum(1, radius / tolerances.fit_radius) ** 4)
        & (asked_of(objects.outline, asked.shape) <= tolerances.outline)
        & (asked_of(objects.worst, asked.shape) <= tolerances.horn)
        & whole,
        right_size=normal & (limit | ~sized),
    )


def _assign(asked: _Asked, fits: _Fits) -> tuple[Bools, NDArray[np.int64]]:
    """Return which object stands for which asked thing, (B, A, K), and how many objects there are, (B,).

    Colours go first, since relations go by them; the best assignment as a whole.
    """
    value = 1.1 * fits.color + fits.shape + 0.5 * fits.color * fits.shape + 0.25 * fits.size
    value = value.astype(np.float64)
    counts = fits.there.sum(1)
    match = np.zeros(value.shape, dtype=np.bool_)
    for b, (things, objects) in enumerate(zip(asked.count, counts, strict=True)):
        rows, columns = linear_sum_assignment(value[b, :things, :objects], maximize=True)
        match[b, rows, columns] = True
    return match, counts


def _relations(
    asked: _Asked, centre: Mapping[str, Array], color: Array, matched: Bools, tolerances: Tolerances
) -> tuple[Array, Bools]:
    """Return how clearly relations hold, (B,), NaN without any; whether each does, (B, R), True without one."""
    asks = np.abs(asked.axis).sum(-1) > 0  # (B, R)
    dx = centre["x"][:, :1] - centre["x"][:, 1:]
    dy = centre["y"][:, :1] - centre["y"][:, 1:]
    along = dx * asked.axis[..., 0] + dy * asked.axis[..., 1]
    across = np.abs(np.where(asked.axis[..., 0] != 0, dy, dx))
    known = np.minimum(1, 2 * np.minimum(color[:, :1], color[:, 1:])) * (matched[:, :1] & matched[:, 1:])
    margin = along - _ASKEW * across
    fit = np.clip((margin + 0.15) / 0.3, 0, 1) * known * asks
    holds = (along >= tolerances.separation) & (margin > 0) & (known > 0)
    with np.errstate(invalid="ignore"):
        return fit.sum(1) / np.where(asks.any(1), asks.sum(1), np.nan), holds | ~asks
