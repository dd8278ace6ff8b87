"""The embedded world of coloured shapes: its vocabulary, its prompt grammar and its verifiable scorers.

    a red circle  |  two blue squares  |  three black triangles  |  a red circle left of a blue square

In the manner of GenEval: read the prompt, find the objects in the picture, compare. `ShapesScorer` gives partial
credit, `StrictShapesScorer` a pass or a fail; both see the same things, and partial credit is 1 exactly where strict
passes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.errors import RewardError
from reward_models.images.shapes_vision import BACKGROUND, PALETTE, SHAPES, FoundObject, Perception, coverage, perceive

__all__ = [
    "BACKGROUND",
    "COLORS",
    "NUMBERS",
    "PALETTE",
    "RELATIONS",
    "SHAPES",
    "SceneSpec",
    "ShapesScorer",
    "StrictShapesScorer",
    "Thing",
    "Tolerances",
    "coverage",
    "format_prompt",
    "parse_prompt",
]

COLORS = tuple(PALETTE)
NUMBERS: Mapping[str, int] = {"a": 1, "two": 2, "three": 3}
RELATIONS: Mapping[str, tuple[int, int]] = {
    "left of": (-1, 0),
    "right of": (1, 0),
    "above": (0, -1),
    "below": (0, 1),
}
"""Where the first object lies, seen from the second: (x, y), y pointing down."""

PARTS = ("count", "colour", "shape", "binding", "relation", "clean", "partial", "strict")


@dataclass(frozen=True, order=True)
class Thing:
    """A coloured shape: a colour of `COLORS` and a shape of `SHAPES`."""

    color: str
    shape: str


@dataclass(frozen=True)
class SceneSpec:
    """What a prompt asks for: one to three equal things, or two things in a relation (the first to the second)."""

    things: tuple[Thing, ...]
    relation: str | None = None


def format_prompt(scene: SceneSpec) -> str:
    """The prompt of a scene; the inverse of `parse_prompt`."""
    first = scene.things[0]
    if scene.relation is not None:
        second = scene.things[1]
        return f"a {first.color} {first.shape} {scene.relation} a {second.color} {second.shape}"
    number = next(word for word, count in NUMBERS.items() if count == len(scene.things))
    return f"{number} {first.color} {first.shape}{'s' if len(scene.things) > 1 else ''}"


def parse_prompt(text: str) -> SceneSpec:
    """Read a prompt; letter case, extra spaces and a final full stop do not matter.

    Raises:
        RewardError: the prompt is outside the grammar.
    """
    words = text.lower().strip().removesuffix(".").split()
    for relation in RELATIONS:
        middle = relation.split()
        if words[3 : 3 + len(middle)] == middle:
            first, second = _things(words[:3], text), _things(words[3 + len(middle) :], text)
            if len(first) == len(second) == 1 and first[0].color != second[0].color:
                return SceneSpec(first + second, relation)
            raise _outside_grammar(text)
    return SceneSpec(_things(words, text))


def _things(words: list[str], text: str) -> tuple[Thing, ...]:
    """Read `[number, colour, shape]`."""
    if len(words) != 3 or words[0] not in NUMBERS or words[1] not in COLORS:
        raise _outside_grammar(text)
    count = NUMBERS[words[0]]
    shape = words[2].removesuffix("s") if count > 1 else words[2]
    if shape not in SHAPES or (count > 1 and not words[2].endswith("s")):
        raise _outside_grammar(text)
    return (Thing(words[1], shape),) * count


def _outside_grammar(text: str) -> RewardError:
    return RewardError(
        "A shapes prompt is 'a|two|three COLOUR SHAPE[s]' or 'a COLOUR SHAPE RELATION a COLOUR SHAPE' with two "
        f"different colours. Got {text!r}. Colours: {', '.join(COLORS)}; shapes: {', '.join(SHAPES)}; "
        f"relations: {', '.join(RELATIONS)}."
    )


@dataclass(frozen=True)
class Tolerances:
    """How far a picture may be from perfect and still pass.

    Args:
        color_error: greatest RGB distance (0-441) of an object's interior to its palette colour.
        purity: least share of an object's interior that has about this colour.
        overlap: least intersection over union with the named shape's template.
        overlap_margin: by how much this overlap must beat that of every other shape, so that blobs are no shape.
        min_area: least area of an object as a fraction of the picture.
        max_area: greatest area of an object as a fraction of the picture.
        separation: least distance of two objects along the relation's axis, as a fraction of the picture's side; it
            must also exceed their distance along the other axis.
        background_error: greatest RGB distance of the background to the world's light grey.
        clutter: greatest amount of foreground outside the objects, as a fraction of the picture.
    """

    color_error: float = 36.0
    purity: float = 0.85
    overlap: float = 0.88
    overlap_margin: float = 0.06
    min_area: float = 0.025
    max_area: float = 0.12
    separation: float = 0.15
    background_error: float = 30.0
    clutter: float = 0.004

    def __post_init__(self) -> None:
        """Refuse negative tolerances."""
        wrong = {f.name: getattr(self, f.name) for f in fields(self) if not getattr(self, f.name) >= 0}
        if wrong:
            raise RewardError(f"Tolerances of the shapes scorer must be >= 0. Got {wrong}.")


def judge(scene: SceneSpec, seen: Perception, tolerances: Tolerances) -> dict[str, float]:
    """Compare what was asked with what was seen.

    Args:
        scene: what the prompt asks for.
        seen: what the picture shows.
        tolerances: what still passes.

    Returns:
        The parts, each in [0, 1], and their summaries `partial` and `strict`:
        count: 1 - |found - asked| / asked, at least 0.
        colour, shape, binding: share of objects with the right colour / shape / both, extra objects counting as wrong.
        relation: 1 if the two objects lie as asked (or nothing was asked), else 0.
        clean: 1 if the background is the world's and nothing lies beside the objects, else 0.
        partial: their mean; without relation where nothing was asked.
        strict: 1 if all of them are 1, else 0.
    """
    asked, found = scene.things, seen.objects
    colors = np.array([[_has_color(thing, item, tolerances) for item in found] for thing in asked], dtype=bool)
    shapes = np.array([[_has_shape(thing, item, tolerances) for item in found] for thing in asked], dtype=bool)
    colors, shapes = colors.reshape(len(asked), len(found)), shapes.reshape(len(asked), len(found))
    likeness = 1.1 * colors + 1.0 * shapes + 0.5 * (colors & shapes)  # colours break ties: relations go by them
    rows, columns = linear_sum_assignment(likeness, maximize=True)
    total = max(len(asked), len(found))
    clean = seen.background_error <= tolerances.background_error and seen.clutter <= tolerances.clutter
    parts = {
        "count": max(0.0, 1 - abs(len(found) - len(asked)) / len(asked)),
        "colour": float(colors[rows, columns].sum()) / total,
        "shape": float(shapes[rows, columns].sum()) / total,
        "binding": float((colors & shapes)[rows, columns].sum()) / total,
        "relation": 1.0,
        "clean": float(clean),
    }
    if scene.relation is not None:
        pair = len(rows) == 2 and bool(colors[rows, columns].all())
        parts["relation"] = float(
            pair and _lies(scene.relation, found[columns[0]], found[columns[1]], tolerances.separation)
        )
    counted = [value for name, value in parts.items() if name != "relation" or scene.relation is not None]
    strict = float(all(value == 1.0 for value in counted))
    return {**parts, "partial": sum(counted) / len(counted), "strict": strict}


def _has_color(thing: Thing, item: FoundObject, tolerances: Tolerances) -> bool:
    right = COLORS[item.color] == thing.color
    return right and item.color_error <= tolerances.color_error and item.purity >= tolerances.purity


def _has_shape(thing: Thing, item: FoundObject, tolerances: Tolerances) -> bool:
    index = SHAPES.index(thing.shape)
    own = item.overlaps[index]
    others = max(value for i, value in enumerate(item.overlaps) if i != index)
    sized = tolerances.min_area <= item.area <= tolerances.max_area and not item.touches_border
    return sized and own >= tolerances.overlap and own - others >= tolerances.overlap_margin


def _lies(relation: str, first: FoundObject, second: FoundObject, separation: float) -> bool:
    axis_x, axis_y = RELATIONS[relation]
    dx, dy = first.x - second.x, first.y - second.y
    along = dx * axis_x + dy * axis_y
    across = abs(dy if axis_x else dx)
    return along >= separation and along > across


class ShapesScorer(WithoutWeights):
    """Partial credit in [0, 1]: the mean of the parts that apply (relation only where the prompt has one).

    Args:
        **tolerances: fields of `Tolerances`.
    """

    spec = ScorerSpec(
        name="shapes",
        description="Partial credit for count, colours, shapes, their binding, relation and a clean background.",
        range=(0.0, 1.0),
    )
    summary = "partial"
    __signature__ = inspect.signature(Tolerances)  # what a wrong option is compared with

    def __init__(self, **tolerances: float) -> None:
        self.tolerances = Tolerances(**tolerances)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of pictures; a prompt outside the grammar gives NaN for its sample.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        pictures = batch.media.cpu().permute(0, 2, 3, 1).contiguous().numpy()  # (B, H, W, 3)
        rows = [self._score(picture, text) for picture, text in zip(pictures, batch.prompts, strict=True)]
        return output_of_rows(rows, PARTS)

    def _score(self, picture: NDArray[np.uint8], text: str) -> tuple[float, dict[str, float], str | None]:
        try:
            scene = parse_prompt(text)
        except RewardError as error:
            return math.nan, {}, str(error)
        parts = judge(scene, perceive(picture), self.tolerances)
        return parts[self.summary], parts, None


class StrictShapesScorer(ShapesScorer):
    """1 if everything the prompt asks for is right and nothing else is there, else 0.

    Args:
        **tolerances: fields of `Tolerances`.
    """

    spec = ScorerSpec(
        name="shapes_strict",
        description="1 if count, colours, shapes, relation and background are all right, else 0.",
        range=(0.0, 1.0),
    )
    summary = "strict"
