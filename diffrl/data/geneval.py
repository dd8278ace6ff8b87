"""The world of GenEval: prompts over the 80 classes of COCO, with the conditions that the reward `geneval` reads.

Six kinds, as in the benchmark (Ghosh et al. 2023, arXiv:2310.11513): one object, two objects, two to four of a class,
a colour, a position, two objects with a colour each. Classes, colours, relations and the metadata's format are the
benchmark's; the sentences and the choice are this module's.

**Splits** are divided by *combinations*: two classes that meet in a prompt of one held-out split meet in no prompt of
another, in whatever order, relation or colour; so it is with a number and its class, a colour and its class, and a
class that is asked for alone.

**The benchmark's own 553 prompts** are not held here. No prompt of this world is one of them: all of theirs begin with
"a photo of", and none of these does. Their combinations are not left out, because the list would be needed for it: a
class alone is in both for certain, a pair, a number or a colour may be. So a benchmark score after training here is one
on a known grammar with new sentences, and no measure of unseen combinations; that is what `report` is for.

    prompt = prompts("tune")[0]
    prompt.metadata["include"]  # what geneval looks for
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from diffrl.data.worlds import SPLITS, Split, require_split, split_of_combinations
from diffrl.records import Prompt
from reward_models.images.geneval_rules import COLORS, RELATIONS

PLURALS: Mapping[str, str] = {
    "person": "people", "bicycle": "bicycles", "car": "cars", "motorcycle": "motorcycles", "airplane": "airplanes",
    "bus": "buses", "train": "trains", "truck": "trucks", "boat": "boats", "traffic light": "traffic lights",
    "fire hydrant": "fire hydrants", "stop sign": "stop signs", "parking meter": "parking meters", "bench": "benches",
    "bird": "birds", "cat": "cats", "dog": "dogs", "horse": "horses", "sheep": "sheep", "cow": "cows",
    "elephant": "elephants", "bear": "bears", "zebra": "zebras", "giraffe": "giraffes", "backpack": "backpacks",
    "umbrella": "umbrellas", "handbag": "handbags", "tie": "ties", "suitcase": "suitcases", "frisbee": "frisbees",
    "skis": "", "snowboard": "snowboards", "sports ball": "sports balls", "kite": "kites",
    "baseball bat": "baseball bats", "baseball glove": "baseball gloves", "skateboard": "skateboards",
    "surfboard": "surfboards", "tennis racket": "tennis rackets", "bottle": "bottles", "wine glass": "wine glasses",
    "cup": "cups", "fork": "forks", "knife": "knives", "spoon": "spoons", "bowl": "bowls", "banana": "bananas",
    "apple": "apples", "sandwich": "sandwiches", "orange": "oranges", "broccoli": "", "carrot": "carrots",
    "hot dog": "hot dogs", "pizza": "pizzas", "donut": "donuts", "cake": "cakes", "chair": "chairs", "couch": "couches",
    "potted plant": "potted plants", "bed": "beds", "dining table": "dining tables", "toilet": "toilets", "tv": "TVs",
    "laptop": "laptops", "mouse": "computer mice", "remote": "TV remotes", "keyboard": "computer keyboards",
    "cell phone": "cell phones", "microwave": "microwaves", "oven": "ovens", "toaster": "toasters", "sink": "sinks",
    "refrigerator": "refrigerators", "book": "books", "clock": "clocks", "vase": "vases", "scissors": "",
    "teddy bear": "teddy bears", "hair drier": "hair driers", "toothbrush": "toothbrushes",
}  # fmt: skip
"""COCO's classes and how several are called; none for what cannot be counted, or comes in pairs."""

CLASSES = tuple(PLURALS)
SAID: Mapping[str, str] = {
    "tv": "TV", "mouse": "computer mouse", "remote": "TV remote", "keyboard": "computer keyboard",
    "skis": "pair of skis", "scissors": "pair of scissors", "broccoli": "piece of broccoli",
}  # fmt: skip
"""What a class is called in a sentence, where COCO's name alone would be read otherwise."""

UNCOLORED = ("person", "orange")
"""Classes that no colour is asked of: people, and a fruit that is called by one."""

NUMBERS = {2: "two", 3: "three", 4: "four"}
FRAMES = ("a picture of {}", "an image of {}", "a picture that shows {}", "an image with {}", "a clear picture of {}",
          "a realistic image of {}")  # fmt: skip
"""How sentences begin; one is taken by chance where `FRAMED` has fewer. None is the benchmark's."""

FRAMED: Mapping[str, int] = {"single_object": 2, "counting": 6}
"""Sentences for each scene of a kind, 1 where it is left out: of numbers and single objects there are few scenes."""

ONE_OF: Mapping[str, int] = {"two_object": 3, "position": 8, "color_attr": 2}
"""Kinds of which there are thousands of scenes: one of so many is kept."""

KINDS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""The benchmark's tags."""

HELD_OUT_SHARE = 0.16
"""Of all combinations: tune and report together."""


@dataclass(frozen=True)
class Asked:
    """So many objects of a class, in a colour where one is asked for."""

    name: str
    count: int = 1
    color: str | None = None


@dataclass(frozen=True)
class Scene:
    """What a prompt asks for.

    Args:
        tag: of `KINDS`.
        asked: one or two things.
        relation: where the second of two lies, seen from the first; None where that is left free.
    """

    tag: str
    asked: tuple[Asked, ...]
    relation: str | None = None


def prompts(split: Split) -> list[Prompt]:
    """Prompts of a split, in a fixed order; `metadata` is a line of GenEval's evaluation_metadata.jsonl.

    Kinds are interleaved evenly, so that the first prompts of a split are a fair sample of it.

    Raises:
        ConfigError: there is no such split.
    """
    require_split("geneval", split)
    chosen = []
    for kind in KINDS:
        made = _prompts(kind)[split]
        chosen += [((i + 0.5) / len(made), kind, prompt) for i, prompt in enumerate(made)]
    return [prompt for _, _, prompt in sorted(chosen, key=lambda item: item[:2])]


@cache
def _prompts(kind: str) -> Mapping[Split, list[Prompt]]:
    """Return the prompts of a kind in each split, in the order of their hashes."""
    by_split: dict[Split, list[Prompt]] = {split: [] for split in SPLITS}
    for scene in _scenes(kind):
        split = split_of(scene)
        if split is not None and _hash(repr(scene)) % ONE_OF.get(kind, 1) == 0:
            by_split[split] += [Prompt(text, metadata_of(scene)) for text in texts_of(scene)]
    return {split: sorted(made, key=lambda prompt: _hash(prompt.text)) for split, made in by_split.items()}


def texts_of(scene: Scene) -> list[str]:
    """Return the sentences that ask for a scene."""
    first, *others = (_phrase(asked) for asked in scene.asked)
    phrase = first
    for other in others:
        phrase = f"{first} and {other}" if scene.relation is None else f"{other} {scene.relation} {first}"
    start = _hash(phrase)
    chosen = (FRAMES[(start + i) % len(FRAMES)] for i in range(FRAMED.get(scene.tag, 1)))
    return [frame.format(phrase) for frame in chosen]


def metadata_of(scene: Scene) -> dict[str, Any]:
    """Its conditions as `reward_models.images.geneval_rules` reads them.

    Of a number also one more is ruled out, as in the benchmark.
    """
    include: list[dict[str, Any]] = []
    for asked in scene.asked:
        clause: dict[str, Any] = {"class": asked.name, "count": asked.count}
        if asked.color is not None:
            clause["color"] = asked.color
        if include and scene.relation is not None:
            clause["position"] = [scene.relation, 0]
        include.append(clause)
    many = [{"class": asked.name, "count": asked.count + 1} for asked in scene.asked if asked.count > 1]
    return {"tag": scene.tag, "include": include, **({"exclude": many} if many else {})}


def combinations_of(scene: Scene) -> Iterator[str]:
    """Yield what meets in a scene: its two classes, each number and each colour with its class, or a class alone."""
    if len(scene.asked) > 1:
        yield _pair(*(asked.name for asked in scene.asked))
    for asked in scene.asked:
        if asked.count > 1:
            yield f"{asked.count} {asked.name}"
        if asked.color is not None:
            yield f"{asked.color} {asked.name}"
    if scene.tag == "single_object":
        yield f"only {scene.asked[0].name}"


def split_of(scene: Scene) -> Split | None:
    """Return a scene's split: that of its held-out combinations; None if these are of two, "train" if it has none."""
    return split_of_combinations(combinations_of(scene), _held_out())


@cache
def _held_out() -> Mapping[str, Split]:
    """Who owns which held-out combination: the first of each sort by their hashes, in turn."""
    sorts = (
        [_pair(a, b) for a, b in itertools.combinations(CLASSES, 2)],
        [f"{number} {name}" for name in CLASSES if PLURALS[name] for number in NUMBERS],
        [f"{color} {name}" for name in CLASSES if name not in UNCOLORED for color in COLORS],
        [f"only {name}" for name in CLASSES],
    )
    chosen = [c for sort in sorts for c in enumerate(sorted(sort, key=_hash)[: round(HELD_OUT_SHARE * len(sort))])]
    return {combination: SPLITS[1:][i % 2] for i, combination in chosen}


def _scenes(kind: str) -> Iterator[Scene]:
    """Every scene of a kind; of two colours on two objects one choice for each pair."""
    if kind == "single_object":
        yield from (Scene(kind, (Asked(name),)) for name in CLASSES)
    elif kind == "counting":
        yield from (Scene(kind, (Asked(name, number),)) for name in CLASSES if PLURALS[name] for number in NUMBERS)
    elif kind == "colors":
        yield from (Scene(kind, (Asked(n, color=color),)) for n in CLASSES if n not in UNCOLORED for color in COLORS)
    elif kind == "position":
        for (a, b), relation in itertools.product(itertools.permutations(CLASSES, 2), RELATIONS):
            yield Scene(kind, (Asked(a), Asked(b)), relation)
    elif kind == "two_object":
        yield from (Scene(kind, (Asked(a), Asked(b))) for a, b in itertools.combinations(CLASSES, 2))
    else:
        colors = list(itertools.permutations(COLORS, 2))
        for a, b in itertools.combinations([name for name in CLASSES if name not in UNCOLORED], 2):
            first, second = colors[_hash(_pair(a, b)) % len(colors)]
            yield Scene(kind, (Asked(a, color=first), Asked(b, color=second)))


def _phrase(asked: Asked) -> str:
    """Return a thing with its article or number: "a red apple", "three buses"."""
    if asked.count > 1:
        return f"{NUMBERS[asked.count]} {PLURALS[asked.name]}"
    name = SAID.get(asked.name, asked.name)
    named = name if asked.color is None else f"{asked.color} {name}"
    return f"{'an' if named[0] in 'aeiou' else 'a'} {named}"


def _pair(a: str, b: str) -> str:
    return "|".join(sorted((a, b)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
