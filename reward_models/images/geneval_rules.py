"""GenEval's rules over detected objects, as published, without any model: reading a prompt's conditions, judging them.

Ghosh et al. 2023, "GenEval: An object-focused framework for evaluating text-to-image alignment", arXiv:2310.11513, and
evaluation/evaluate_images.py of github.com/djghosh13/geneval (MIT). A line of its evaluation_metadata.jsonl:

    {"tag": "position", "prompt": "a photo of a dog right of a tie", "include": [{"class": "tie", "count": 1},
     {"class": "dog", "count": 1, "position": ["right of", 0]}]}
    {"tag": "counting", "prompt": "a photo of two clocks", "include": [{"class": "clock", "count": 2}],
     "exclude": [{"class": "clock", "count": 3}]}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reward_models.common.errors import RewardError

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS = ("left of", "right of", "above", "below")
KINDS = ("count", "colour", "position", "exclude")
ALIASES: Mapping[str, str] = {
    "computer keyboard": "keyboard",
    "computer mouse": "mouse",
    "tv remote": "remote",
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}
"""Other names, GenEval's own and older ones, of COCO's classes."""


def class_name(name: str) -> str:
    """Return COCO's name of a class, in lower case; a name that is none of `ALIASES` stays."""
    lower = " ".join(name.lower().split())
    return ALIASES.get(lower, lower)


@dataclass(frozen=True)
class Detection:
    """An object found in an image.

    Args:
        name: its class.
        score: the detector's confidence in [0, 1].
        box: (x0, y0, x1, y1) in pixels, the last column and row not included.
        mask: (H, W) bool, or None.
    """

    name: str
    score: float
    box: tuple[float, float, float, float]
    mask: NDArray[np.bool_] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Clause:
    """What is asked of one class: at least `count` objects (exclude: fewer), their colour, and where they lie.

    Args:
        name: the class as the metadata has it.
        count: at least 1.
        color: one of `COLORS`, or None.
        position: a relation and the index of an earlier clause that it is to, or None.
    """

    name: str
    count: int
    color: str | None = None
    position: tuple[str, int] | None = None


@dataclass(frozen=True)
class Conditions:
    """All that a prompt asks for; `counting` prompts are judged with a higher confidence."""

    include: tuple[Clause, ...]
    exclude: tuple[Clause, ...]
    counting: bool


ColorsOf = Callable[[Sequence[Detection], str], list[str]]
"""(objects of one class, the class) -> the colour of each, of `COLORS`."""


def read_conditions(metadata: Mapping[str, Any]) -> Conditions:
    """Read a sample's metadata in GenEval's format: include, and where there are any exclude and tag.

    Raises:
        RewardError: it is not of that format.
    """
    include = tuple(_clause(entry, index) for index, entry in enumerate(_list(metadata, "include")))
    exclude = tuple(_clause(entry, 0) for entry in _list(metadata, "exclude"))
    if not include and not exclude:
        raise _wrong("needs at least one entry in include", dict(metadata))
    return Conditions(include, exclude, metadata.get("tag") == "counting")


def kept(detections: Sequence[Detection], threshold: float, max_objects: int) -> dict[str, list[Detection]]:
    """Return objects to judge by, of each class: those above the threshold, surest first, at most `max_objects`.

    GenEval keeps overlapping objects (its non-maximum suppression is off by default).
    """
    by_class: dict[str, list[Detection]] = {}
    for item in sorted(detections, key=lambda item: -item.score):
        if item.score > threshold:
            by_class.setdefault(class_name(item.name), []).append(item)
    return {name: items[:max_objects] for name, items in by_class.items()}


def relations(first: Detection, second: Detection, slack: float) -> set[str]:
    """Return where the first object lies, seen from the second; none, one or two of `RELATIONS`.

    The offset of the centres is shortened along each axis by slack * (sum of both sizes along it), and divided by the
    length of the full offset; a coordinate beyond 0.5 is a relation (y points down).
    """
    offset, shortened = [], []
    for axis in (0, 1):
        (a, b), (c, d) = ((item.box[axis], item.box[axis + 2]) for item in (first, second))
        offset.append((a + b) / 2 - (c + d) / 2)
        left = max(abs(offset[axis]) - slack * (abs(b - a) + abs(d - c)), 0.0)
        shortened.append(math.copysign(left, offset[axis]))
    if all(abs(value) < 1e-3 for value in shortened):
        return set()
    x, y = (value / math.hypot(*offset) for value in shortened)
    holds = (x < -0.5, x > 0.5, y < -0.5, y > 0.5)
    return {name for name, true in zip(RELATIONS, holds, strict=True) if true}


def judge(
    conditions: Conditions, objects: Mapping[str, Sequence[Detection]], colors_of: ColorsOf, slack: float = 0.1
) -> dict[str, float]:
    """Return which of a prompt's conditions hold.

    Of each clause the surest `count` objects are looked at. Count: there are so many. Colour: they all have it.
    Position: the count and the colour hold, the clause that it refers to holds, and every object lies so to every
    object of it. Exclude: there are fewer than its count.

    Args:
        conditions: what the prompt asks for.
        objects: what was found, from `kept`, by `class_name`.
        colors_of: asked only where a clause has a colour and its count holds.
        slack: see `relations`.

    Returns:
        strict: 1 if all conditions hold, which is GenEval's `correct`, else 0; partial: the share of conditions that
        hold; and the share of each kind in `KINDS` that was asked for.
    """
    held: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    groups: list[Sequence[Detection] | None] = []
    for clause in conditions.include:
        chosen = list(objects.get(class_name(clause.name), ()))[: clause.count]
        right = len(chosen) == clause.count
        held["count"].append(right)
        if clause.color is not None:
            right = right and colors_of(chosen, clause.name).count(clause.color) == clause.count
            held["colour"].append(right)
        if clause.position is not None:
            relation, index = clause.position
            target = groups[index]
            right = right and target is not None
            right = right and all(relation in relations(a, b, slack) for a in chosen for b in target or ())
            held["position"].append(right)
        groups.append(chosen if right else None)
    for clause in conditions.exclude:
        held["exclude"].append(len(objects.get(class_name(clause.name), ())) < clause.count)
    every = [value for values in held.values() for value in values]
    shares = {kind: sum(values) / len(values) for kind, values in held.items() if values}
    return {"strict": float(all(every)), "partial": sum(every) / len(every), **shares}


def _list(metadata: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = metadata.get(key) or ()
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise _wrong(f"has a list at {key}", value)
    return value


def _clause(entry: Any, index: int) -> Clause:
    """Read one entry; `index` is its own place, which a position must refer before."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("class"), str) or not entry["class"].strip():
        raise _wrong("names a class in every entry", entry)
    count = entry.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise _wrong("has a whole count >= 1 in every entry", entry)
    color = entry.get("color")
    if color is not None and color not in COLORS:
        raise _wrong(f"has colours of {', '.join(COLORS)}", entry)
    position = entry.get("position")
    if position is None:
        return Clause(entry["class"], count, color)
    if not isinstance(position, Sequence) or len(position) != 2 or position[0] not in RELATIONS:
        raise _wrong(f"has positions [{' | '.join(RELATIONS)}, index of an earlier entry]", entry)
    if isinstance(position[1], bool) or not isinstance(position[1], int) or not 0 <= position[1] < index:
        raise _wrong("has positions that refer to an earlier entry of include, counted from 0", entry)
    return Clause(entry["class"], count, color, (position[0], position[1]))


def _wrong(rule: str, received: Any) -> RewardError:
    return RewardError(f"GenEval's metadata {rule}. Got {received!r}. Mend the prompts' .jsonl file.")
