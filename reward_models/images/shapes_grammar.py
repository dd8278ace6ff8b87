"""What prompts of the embedded world of coloured shapes may say, and what they ask for.

    a red circle | three small blue squares                                    one kind of thing, one to four of it
    two red circles and a blue square | a red circle and a blue square and a black triangle     up to four things
    a large red circle left of a small blue square                                              a relation
    a red circle left of a blue square and above a black triangle                               two of them

Kinds of things in one prompt differ in colour, so that it is never open which object a relation speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from reward_models.common.errors import RewardError
from reward_models.images.shapes_vision import PALETTE, SHAPES

COLORS = tuple(PALETTE)
NUMBERS: Mapping[str, int] = {"a": 1, "two": 2, "three": 3, "four": 4}
SIZES = ("small", "large")
RELATIONS: Mapping[str, tuple[int, int]] = {
    "left of": (-1, 0),
    "right of": (1, 0),
    "above": (0, -1),
    "below": (0, 1),
}
"""Where the first object lies, seen from the second: (x, y), y pointing down."""

MOST_THINGS = 4


@dataclass(frozen=True, order=True)
class Thing:
    """A coloured shape: a colour of `COLORS`, a shape of `SHAPES`, and a size of `SIZES`, or "" for any size."""

    color: str
    shape: str
    size: str = ""


@dataclass(frozen=True)
class SceneSpec:
    """What a prompt asks for.

    Args:
        things: one to four, equal ones together.
        relations: of the first thing to the second, the third, ... in their order; empty where places are free.
    """

    things: tuple[Thing, ...]
    relations: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[tuple[Thing, int], ...]:
        """Each different thing with how many of it are asked for."""
        return tuple((thing, len(list(equal))) for thing, equal in groupby(self.things))


def format_prompt(scene: SceneSpec) -> str:
    """Return the prompt of a scene; the inverse of `parse_prompt`."""
    phrases = [_phrase(thing, count) for thing, count in scene.kinds]
    if not scene.relations:
        return " and ".join(phrases)
    return f"{phrases[0]} " + " and ".join(
        f"{relation} {phrase}" for relation, phrase in zip(scene.relations, phrases[1:], strict=True)
    )


def _phrase(thing: Thing, count: int) -> str:
    number = next(word for word, value in NUMBERS.items() if value == count)
    named = " ".join(word for word in (thing.size, thing.color, thing.shape) if word)
    article = "an" if number == "a" and named[0] in "aeiou" else number
    return f"{article} {named}{'s' if count > 1 else ''}"


def parse_prompt(text: str) -> SceneSpec:
    """Read a prompt; letter case, extra spaces and a final full stop do not matter.

    Raises:
        RewardError: the prompt is outside the grammar.
    """
    pieces = _pieces(text.lower().strip().removesuffix(".").split())
    relations = tuple(relation for relation, _ in pieces[1:])
    kinds = [_kind(words, text) for _, words in pieces]
    things = tuple(thing for thing, count in kinds for _ in range(count))
    related = any(relations)
    if (
        pieces[0][0]
        or (related and not (all(relations) and all(count == 1 for _, count in kinds) and len(kinds) <= 3))
        or len(things) > MOST_THINGS
        or len({thing.color for thing, _ in kinds}) < len(kinds)
    ):
        raise _outside_grammar(text)
    return SceneSpec(things, relations if related else ())


def _pieces(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return phrases with the relation before each, or ""."""
    pieces: list[tuple[str, list[str]]] = [("", [])]
    rest = list(words)
    while rest:
        relation = next((r for r in RELATIONS if rest[: len(r.split())] == r.split()), None)
        if relation is not None:
            rest = rest[len(relation.split()) :]
            if pieces[-1] == ("", []) and len(pieces) > 1:
                pieces[-1] = (relation, [])
            else:
                pieces.append((relation, []))
        elif rest[0] == "and":
            rest = rest[1:]
            pieces.append(("", []))
        else:
            pieces[-1][1].append(rest.pop(0))
    return pieces


def _kind(words: Sequence[str], text: str) -> tuple[Thing, int]:
    """Read `[number, (size,) colour, shape]`."""
    size = words[1] if len(words) == 4 and words[1] in SIZES else ""
    plain = [words[0], *words[2:]] if size else list(words)
    if plain and plain[0] == "an":
        plain[0] = "a"
    if len(plain) != 3 or plain[0] not in NUMBERS or plain[1] not in COLORS:
        raise _outside_grammar(text)
    count = NUMBERS[plain[0]]
    shape = plain[2].removesuffix("s") if count > 1 else plain[2]
    if shape not in SHAPES or (count > 1 and not plain[2].endswith("s")):
        raise _outside_grammar(text)
    return Thing(plain[1], shape, size), count


def _outside_grammar(text: str) -> RewardError:
    return RewardError(
        "A shapes prompt is 'NUMBER [SIZE] COLOUR SHAPE[s]', several of these joined by 'and', or 'a [SIZE] COLOUR "
        "SHAPE RELATION a [SIZE] COLOUR SHAPE', and once more 'and RELATION a ...', with at most four things and "
        "different "
        f"colours. Got {text!r}. Numbers: {', '.join(NUMBERS)}; sizes: {', '.join(SIZES)}; colours: "
        f"{', '.join(COLORS)}; shapes: {', '.join(SHAPES)}; relations: {', '.join(RELATIONS)}."
    )
