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
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from diffrl.data.worlds import SPLITS, Split, require_split
from diffrl.records import Prompt
from reward_models.images.shapes_grammar import (
    COLORS,
    NUMBERS,
    RELATIONS,
    SIZES,
    SceneSpec,
    Thing,
    format_prompt,
    parse_prompt,
)
from reward_models.images.shapes_vision import BACKGROUND, PALETTE, SHAPES, coverage

LEVELS: Mapping[str, int] = {"count": 1, "relation": 2, "pair": 2, "relations": 3, "crowd": 3}
"""Kinds of prompts and how hard they are: one thing or several of it; two things in a relation; two or three objects of
two kinds; three things in two relations; four objects of two kinds, or three of three."""

PROMPTS: Mapping[Split, Mapping[str, int]] = {
    "train": {"count": 200, "relation": 900, "pair": 400, "relations": 500, "crowd": 500},
    "tune": {"count": 16, "relation": 64, "pair": 40, "relations": 40, "crowd": 40},
    "report": {"count": 16, "relation": 64, "pair": 40, "relations": 40, "crowd": 40},
}
"""How many prompts of each kind a split has at most; those that come first by a hash of their text."""

HELD_OUT = {"tune": 0.12, "report": 0.12}
"""Share of the combinations that belong to each held-out split."""

RADIUS: Mapping[str, tuple[float, float]] = {"": (0.12, 0.15), "small": (0.095, 0.11), "large": (0.16, 0.175)}
"""Radius of a circle of each size as a fraction of the picture's side; the other shapes have the same area."""

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


@lru_cache(maxsize=3)
def _prompts(split: Split) -> tuple[Prompt, ...]:
    chosen = []
    for kind, most in PROMPTS[split].items():
        texts = [format_prompt(scene) for scene in _by_split(kind)[split]]
        texts = sorted(texts, key=_hash)[:most]
        # Kinds are interleaved evenly, so that the first prompts of a split are a fair sample of it.
        chosen += [
            ((i + 0.5) / len(texts), Prompt(text, {"kind": kind, "level": LEVELS[kind]}))
            for i, text in enumerate(texts)
        ]
    return tuple(prompt for _, prompt in sorted(chosen, key=lambda item: (item[0], item[1].text)))


@lru_cache(maxsize=len(LEVELS))
def _by_split(kind: str) -> Mapping[Split, Sequence[SceneSpec]]:
    found: dict[Split, list[SceneSpec]] = {split: [] for split in SPLITS}
    for scene in _scenes(kind):
        split = split_of(scene)
        if split is not None:
            found[split].append(scene)
    return found


def prompts(split: Split) -> list[Prompt]:
    """All prompts of a split, in a fixed order; `metadata` holds "kind" and "level", see `LEVELS`.

    Raises:
        ConfigError: there is no such split.
    """
    require_split("shapes", split)
    return list(_prompts(split))


def scene_of(prompt: Prompt | str) -> SceneSpec:
    """The scene that a prompt asks for."""
    return parse_prompt(prompt if isinstance(prompt, str) else prompt.text)


def combinations_of(scene: SceneSpec) -> Iterator[str]:
    """What meets in a scene: each two of its things in whatever order and size, each plural number with its thing."""
    kinds = [(f"{thing.color} {thing.shape}", count) for thing, count in scene.kinds]
    yield from ("|".join(sorted((a, b))) for (a, _), (b, _) in itertools.combinations(kinds, 2))
    yield from (f"{count} {name}" for name, count in kinds if count > 1)


def split_of(scene: SceneSpec) -> Split | None:
    """The split of a scene: that of its held-out combinations; None if these belong to two, "train" if it has none."""
    owners = {_owner(combination) for combination in combinations_of(scene)} - {"train"}
    if len(owners) > 1:
        return None
    return owners.pop() if owners else "train"


@lru_cache(maxsize=4096)
def _owner(combination: str) -> Split:
    """By a hash of its name: arbitrary, and the same on every machine."""
    place = _hash(combination) / 2**64
    if place < HELD_OUT["tune"]:
        return "tune"
    return "report" if place < HELD_OUT["tune"] + HELD_OUT["report"] else "train"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _scenes(kind: str) -> Iterator[SceneSpec]:
    """Every scene of a kind."""
    things = [Thing(color, shape) for color in COLORS for shape in SHAPES]
    if kind == "count":
        for thing, count in itertools.product(things, NUMBERS.values()):
            yield SceneSpec((thing,) * count)
            if count <= 2:
                yield from (SceneSpec((Thing(thing.color, thing.shape, size),) * count) for size in SIZES)
    elif kind == "relation":
        for a, b in _differing(things, 2):
            for relation in RELATIONS:
                for sizes in (("", ""), SIZES, SIZES[::-1]):
                    yield SceneSpec((_sized(a, sizes[0]), _sized(b, sizes[1])), (relation,))
    elif kind == "pair":
        for a, b in _differing(things, 2):
            yield SceneSpec((a, b))
            yield SceneSpec((a, a, b))
            yield from (SceneSpec((_sized(a, size), b)) for size in SIZES)
    elif kind == "relations":
        for three in _differing(things, 3):  # one of eight to each: there are thousands
            yield SceneSpec(three, _CROSSING[_hash(repr(three)) % len(_CROSSING)])
    else:
        for a, b in _differing(things, 2):
            yield SceneSpec((a, a, b, b))
            yield SceneSpec((a, a, a, b))
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
    return PlacedThing(thing, rng.uniform(left, 1 - right), rng.uniform(up, 1 - down), radius)


def _fits(item: PlacedThing, placed: Sequence[PlacedThing], relations: Sequence[str]) -> bool:
    """Whether a thing keeps its distance from those before it and, where relations are asked for, stands right."""
    if not all(_apart(item, other) for other in placed):
        return False
    return not relations or not placed or _related(relations[len(placed) - 1], placed[0], item)


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
    return along >= 0.28 and abs(dy if axis_x else dx) <= 0.7 * along
