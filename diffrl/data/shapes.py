"""The embedded verifiable world of coloured shapes: its prompts in three splits, and pictures of them.

One to four flat shapes on light grey. The grammar is that of the scorer, `reward_models.images.shapes_grammar`. The
splits are divided by *combinations*: two things that meet in a prompt of one held-out split meet in no prompt of
another split, in whatever order, size, number or company, so that "b right of a" never gives away "a left of b"; and so
it is with a number and the thing that is counted.

    prompt = prompts("tune")[0]
    picture = render(scene_of(prompt), np.random.default_rng(0))
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from diffrl.data.worlds import SPLITS, Split, require_split, split_of_combinations
from diffrl.records import Prompt
from reward_models.images.shapes_grammar import (
    COLORS,
    MOST_THINGS,
    RELATIONS,
    SIZES,
    SceneSpec,
    Thing,
    format_prompt,
    parse_prompt,
)
from reward_models.images.shapes_vision import BACKGROUND, PALETTE, SHAPES, coverage

LEVELS: Mapping[str, int] = {"count": 1, "relation": 2, "pair": 3, "sized": 3, "relations": 4, "crowd": 4}
"""Kinds of prompts and how hard they are: one thing or up to three of it; two things in a relation; two or three of two
kinds; things with sizes; three things in two relations; four things, or three of three kinds."""

ONE_OF: Mapping[str, int] = {"sized": 2, "relations": 8, "crowd": 2}
"""Kinds of which there are thousands: one prompt of so many is kept, so that none outnumbers the others."""

HELD_OUT_SHARE = 0.16
"""Of all combinations: tune and report together."""

RADIUS: Mapping[str, tuple[float, float]] = {"": (0.125, 0.155), "small": (0.1, 0.115), "large": (0.165, 0.18)}
"""Radius of a circle of each size as a fraction of the picture's side; the other shapes have the same area."""

_PLACES = (0.25, 0.5, 0.75)  # things lie near the crossings of three lines each way, which a small model learns sooner
_SHIFT = 0.03  # how far from them, at most
_GAP = 0.065  # least distance of two bounding boxes, and half of it to the picture's edge
_TRIES = 20  # positions to try for one thing before starting its scene afresh
_RESTARTS = 5000
# Reach of a shape from its centroid (left, right, up, down) for a unit circle's area.
_SIDE = math.sqrt(4 * math.pi / math.sqrt(3))
_EXTENT = {
    "circle": (1.0, 1.0, 1.0, 1.0),
    "square": (math.sqrt(math.pi) / 2,) * 4,
    "triangle": (_SIDE / 2, _SIDE / 2, _SIDE / math.sqrt(3), _SIDE / (2 * math.sqrt(3))),
}


@dataclass(frozen=True)
class PlacedThing:
    """A thing with its centroid (x, y) and the radius of a circle of its area, as fractions of the picture's side."""

    thing: Thing
    x: float
    y: float
    radius: float


def prompts(split: Split, kinds: Sequence[str] = tuple(LEVELS)) -> list[Prompt]:
    """Prompts of a split, in a fixed order; `metadata` holds "kind" and "level", see `LEVELS`.

    Kinds are interleaved evenly, so that the first prompts of a split are a fair sample of it.

    Args:
        split: which one.
        kinds: of `LEVELS`.

    Raises:
        ConfigError: there is no such split.
    """
    require_split("shapes", split)
    chosen = []
    for kind in kinds:
        texts = _texts(kind)[split]
        chosen += [((i + 0.5) / len(texts), text, kind) for i, text in enumerate(texts)]
    return [Prompt(text, {"kind": kind, "level": LEVELS[kind]}) for _, text, kind in sorted(chosen)]


@cache
def _texts(kind: str) -> Mapping[Split, Sequence[str]]:
    """Return the prompts of a kind in each split, in the order of their hashes."""
    by_split: dict[Split, list[str]] = {split: [] for split in SPLITS}
    for scene in _scenes(kind, [Thing(color, shape) for color in COLORS for shape in SHAPES]):
        split, text = split_of(scene), format_prompt(scene)
        if split is not None and _hash(text) % ONE_OF.get(kind, 1) == 0:
            by_split[split].append(text)
    return {split: sorted(texts, key=_hash) for split, texts in by_split.items()}


def scene_of(prompt: Prompt | str) -> SceneSpec:
    """Return the scene that a prompt asks for."""
    return parse_prompt(prompt if isinstance(prompt, str) else prompt.text)


def combinations_of(scene: SceneSpec) -> Iterator[str]:
    """Yield what meets in a scene: each two of its things in any order and size, each plural number with its thing."""
    kinds = [(f"{thing.color} {thing.shape}", count) for thing, count in scene.kinds]
    yield from ("|".join(sorted((a, b))) for (a, _), (b, _) in itertools.combinations(kinds, 2))
    yield from (f"{count} {name}" for name, count in kinds if count > 1)


def split_of(scene: SceneSpec) -> Split | None:
    """Return a scene's split: that of its held-out combinations; None if these are of two, "train" if it has none."""
    return split_of_combinations(combinations_of(scene), _held_out())


@cache
def _held_out() -> Mapping[str, Split]:
    """Who owns which held-out combination: the first pairs and the first numbers by their hashes, in turn."""
    things = [Thing(color, shape) for color in COLORS for shape in SHAPES]
    scenes = [SceneSpec(pair) for pair in itertools.combinations(things, 2) if pair[0].color != pair[1].color]
    pairs = [combination for scene in scenes for combination in combinations_of(scene)]
    numbers = [f"{count} {thing.color} {thing.shape}" for thing in things for count in range(2, MOST_THINGS + 1)]
    chosen = [c for kind in (pairs, numbers) for c in sorted(kind, key=_hash)[: round(HELD_OUT_SHARE * len(kind))]]
    return {combination: SPLITS[1:][i % 2] for i, combination in enumerate(chosen)}


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _scenes(kind: str, things: Sequence[Thing]) -> Iterator[SceneSpec]:
    """Every scene of a kind."""
    pairs = list(_differing(things, 2))
    if kind == "count":
        yield from (SceneSpec((thing,) * count) for thing in things for count in (1, 2, 3))
    elif kind == "relation":
        yield from (SceneSpec(pair, (relation,)) for pair in pairs for relation in RELATIONS)
    elif kind == "sized":
        yield from (SceneSpec((_sized(thing, size),) * count) for thing in things for size in SIZES for count in (1, 2))
        for (a, b), relation, sizes in itertools.product(pairs, RELATIONS, (SIZES, SIZES[::-1])):
            yield SceneSpec((_sized(a, sizes[0]), _sized(b, sizes[1])), (relation,))
    elif kind == "pair":
        yield from (SceneSpec(scene) for a, b in pairs for scene in ((a, b), (a, a, b)))
    elif kind == "relations":
        for three in _differing(things, 3):  # one of eight to each: there are thousands
            yield SceneSpec(three, _CROSSING[_hash(repr(three)) % len(_CROSSING)])
    else:
        yield from (SceneSpec((thing,) * 4) for thing in things)
        yield from (SceneSpec(scene) for a, b in pairs for scene in ((a, a, b, b), (a, a, a, b)))
        yield from (SceneSpec(three) for three in _differing(things, 3) if list(three) == sorted(three))


_CROSSING = [
    both for both in itertools.permutations(RELATIONS, 2) if bool(RELATIONS[both[0]][0]) != bool(RELATIONS[both[1]][0])
]
"""Pairs of relations along different axes; along the same one three objects hardly fit."""


def _differing(things: Sequence[Thing], count: int) -> Iterator[tuple[Thing, ...]]:
    """Ordered choices of things of different colours."""
    return (c for c in itertools.permutations(things, count) if len({thing.color for thing in c}) == count)


def _sized(thing: Thing, size: str) -> Thing:
    return Thing(thing.color, thing.shape, size)


def render(scene: SceneSpec, rng: np.random.Generator, size: int = 32) -> NDArray[np.uint8]:
    """Draw a scene at random sizes and positions.

    Args:
        scene: what to draw.
        rng: where the randomness comes from.
        size: side of the picture in pixels.

    Returns:
        (size, size, 3) uint8 RGB.
    """
    return draw(sample_scene(scene, rng), size)


def sample_scene(scene: SceneSpec, rng: np.random.Generator) -> tuple[PlacedThing, ...]:
    """Sizes and positions for a scene: nothing overlaps or is cut, and the relations hold clearly."""
    for _ in range(_RESTARTS):
        placed: list[PlacedThing] = []
        for thing in scene.things:
            candidates = (_place(thing, rng) for _ in range(_TRIES))
            free = next((item for item in candidates if _fits(item, placed, scene.relations)), None)
            if free is None:
                break
            placed.append(free)
        if len(placed) == len(scene.things):
            return tuple(placed)
    raise RuntimeError(f"No free place for {format_prompt(scene)!r} in {_RESTARTS} attempts.")


def draw(placed: tuple[PlacedThing, ...], size: int) -> NDArray[np.uint8]:
    """Draw placed things, anti-aliased; (size, size, 3) uint8 RGB."""
    canvas = np.full((size, size, 3), BACKGROUND, dtype=np.float32)
    for item in placed:
        area = math.pi * (item.radius * size) ** 2
        alpha = coverage(item.thing.shape, item.x * size, item.y * size, area, size, size)[..., None]
        canvas += alpha * (np.array(PALETTE[item.thing.color], dtype=np.float32) - canvas)
    return np.rint(canvas).astype(np.uint8)


def _place(thing: Thing, rng: np.random.Generator) -> PlacedThing:
    radius = rng.uniform(*RADIUS[thing.size])
    left, right, up, down = (reach * radius + _GAP / 2 for reach in _EXTENT[thing.shape])
    x, y = rng.choice(_PLACES, 2) + rng.uniform(-_SHIFT, _SHIFT, 2)
    y += (up - down) / 2  # the middle of a shape's height lies there, not its centroid
    return PlacedThing(thing, float(np.clip(x, left, 1 - right)), float(np.clip(y, up, 1 - down)), radius)


def _fits(item: PlacedThing, placed: Sequence[PlacedThing], relations: Sequence[str]) -> bool:
    """Return whether a thing keeps its distance from those before it and stands as relations ask."""
    if not all(_apart(item, other) for other in placed):
        return False
    return not relations or not placed or _related(relations[len(placed) - 1], placed[0], item)


def _apart(a: PlacedThing, b: PlacedThing) -> bool:
    """Return whether two bounding boxes keep their distance."""
    (a_left, a_right, a_up, a_down), (b_left, b_right, b_up, b_down) = _EXTENT[a.thing.shape], _EXTENT[b.thing.shape]
    gap_x = abs(a.x - b.x) - (
        a_right * a.radius + b_left * b.radius if a.x < b.x else a_left * a.radius + b_right * b.radius
    )
    gap_y = abs(a.y - b.y) - (a_down * a.radius + b_up * b.radius if a.y < b.y else a_up * a.radius + b_down * b.radius)
    return max(gap_x, gap_y) >= _GAP


def _related(relation: str, first: PlacedThing, second: PlacedThing) -> bool:
    """Return whether the relation holds so clearly that nobody would dispute it."""
    axis_x, axis_y = RELATIONS[relation]
    dx, dy = first.x - second.x, first.y - second.y
    along = dx * axis_x + dy * axis_y
    return along >= 0.28 and abs(dy if axis_x else dx) <= 0.7 * along
