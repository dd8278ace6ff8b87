"""The embedded verifiable world: prompts in three disjoint splits, and pictures of them.

One to three flat shapes on light grey. The vocabulary and the grammar are those of the scorer,
`reward_models.images.shapes`. Held out are *combinations*: an unordered pair of objects is held out in all four
relations and both orders, so that "b right of a" never gives away "a left of b".

    prompt = prompts("tune")[0]
    picture = render(scene_of(prompt), np.random.default_rng(0))
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffrl.data.worlds import Split, require_split
from diffrl.records import Prompt
from reward_models.images.shapes import (
    BACKGROUND,
    COLORS,
    NUMBERS,
    PALETTE,
    RELATIONS,
    SHAPES,
    SceneSpec,
    Thing,
    coverage,
    format_prompt,
    parse_prompt,
)

HELD_OUT_PAIRS = 20
RADIUS = (0.125, 0.155)
"""Radius of a circle as a fraction of the picture's side; the other shapes have the same area."""

_GAP = 0.07  # least distance of two bounding boxes, and half of it to the picture's edge
_TRIES = 20  # positions to try for one thing before starting its scene afresh
_RESTARTS = 2000
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


def prompts(split: Split) -> list[Prompt]:
    """All prompts of a split, in a fixed order; `metadata["kind"]` is "count" or "relation".

    Raises:
        ConfigError: there is no such split.
    """
    require_split("shapes", split)
    return [
        Prompt(format_prompt(scene), {"kind": "count" if scene.relation is None else "relation"})
        for scene in _all_scenes()
        if split_of(scene) == split
    ]


def scene_of(prompt: Prompt | str) -> SceneSpec:
    """The scene that a prompt asks for."""
    return parse_prompt(prompt if isinstance(prompt, str) else prompt.text)


def split_of(scene: SceneSpec) -> Split:
    """The split that the scene's combination belongs to."""
    key = frozenset(scene.things) if scene.relation is not None else (len(scene.things), scene.things[0])
    held_out = _HELD_OUT_PAIRS if scene.relation is not None else _HELD_OUT_COUNTS
    if key not in held_out:
        return "train"
    return "tune" if held_out.index(key) < len(held_out) // 2 else "report"


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
    """Sizes and positions for a scene: nothing overlaps or is cut, and the relation holds clearly."""
    for _ in range(_RESTARTS):
        placed: list[PlacedThing] = []
        for thing in scene.things:
            candidates = (_place(thing, rng) for _ in range(_TRIES))
            free = next((item for item in candidates if all(_apart(item, other) for other in placed)), None)
            if free is None:
                break
            placed.append(free)
        complete = len(placed) == len(scene.things)
        if complete and (scene.relation is None or _related(scene.relation, *placed)):
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


def _all_scenes() -> list[SceneSpec]:
    things = [Thing(color, shape) for color in COLORS for shape in SHAPES]
    counts = [SceneSpec((thing,) * count) for count in NUMBERS.values() for thing in things]
    pairs = [
        SceneSpec((first, second), relation)
        for first, second in itertools.permutations(things, 2)
        if first.color != second.color
        for relation in RELATIONS
    ]
    return counts + pairs


def _choose_held_out_pairs() -> list[object]:
    """Pairs in the order of a hash of their names: arbitrary, and the same on every machine."""
    things = [Thing(color, shape) for color in COLORS for shape in SHAPES]
    pairs = [sorted(pair) for pair in itertools.combinations(things, 2) if pair[0].color != pair[1].color]
    pairs.sort(key=lambda pair: hashlib.sha256(repr([(t.color, t.shape) for t in pair]).encode()).hexdigest())
    return [frozenset(pair) for pair in pairs[:HELD_OUT_PAIRS]]


_HELD_OUT_PAIRS = _choose_held_out_pairs()
# One combination a colour; every shape and both plural numbers occur.
_HELD_OUT_COUNTS: list[object] = [(2 + i % 2, Thing(color, SHAPES[i % 3])) for i, color in enumerate(COLORS)]


def _place(thing: Thing, rng: np.random.Generator) -> PlacedThing:
    radius = rng.uniform(*RADIUS)
    left, right, up, down = (reach * radius + _GAP / 2 for reach in _EXTENT[thing.shape])
    return PlacedThing(thing, rng.uniform(left, 1 - right), rng.uniform(up, 1 - down), radius)


def _apart(a: PlacedThing, b: PlacedThing) -> bool:
    """Whether two bounding boxes keep their distance."""
    (a_left, a_right, a_up, a_down), (b_left, b_right, b_up, b_down) = _EXTENT[a.thing.shape], _EXTENT[b.thing.shape]
    gap_x = abs(a.x - b.x) - (
        a_right * a.radius + b_left * b.radius if a.x < b.x else a_left * a.radius + b_right * b.radius
    )
    gap_y = abs(a.y - b.y) - (a_down * a.radius + b_up * b.radius if a.y < b.y else a_up * a.radius + b_down * b.radius)
    return max(gap_x, gap_y) >= _GAP


def _related(relation: str, first: PlacedThing, second: PlacedThing) -> bool:
    """Whether the relation holds so clearly that nobody would dispute it."""
    axis_x, axis_y = RELATIONS[relation]
    dx, dy = first.x - second.x, first.y - second.y
    along = dx * axis_x + dy * axis_y
    return along >= 0.3 and abs(dy if axis_x else dx) <= 0.7 * along
