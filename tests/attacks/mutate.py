"""Hostile values, and changes to plain data and to text. Everything is drawn from the generator that is passed in."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

INTEGERS = (0, -1, 1, 2, 3, 5, 7, 64, 1000, 10**5, 10**6, 2**31, 10**9, 2**63 - 1, 2**63, 10**18, 10**30, 10**76)
FLOATS = (
    0.0, -0.0, -1.0, 1e-320, 1e-45, 1e-38, 1e-12, 1e-3, 0.5, 1.0, 1.5, 4.0, 100.0, 1e8, 3e38, 3.5e38, 1e39, 1e308,
    -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "a", "0", "null", "../x", "a/b", ".", "..", "a\0b", "\ud800", "é", "e\u0301", "\u202e", "\u2028",
    "\x1b[2J", "%s%n", "{0}", "a" * 300, "b" * 100_000, "'", '"', "$HOME", "~", "-1", "1e400", "nan", "a\nb", "\ufeff",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"a": 1}, [1, 2, 3], {"": {"": []}}, [[[[1]]]])
STEPS = (-2, -1, 1, 2, 3)

Path = tuple[str | int, ...]


def hostile(rng: random.Random) -> Any:
    """A value that few expect."""
    return copy.deepcopy(rng.choice(rng.choice((INTEGERS, FLOATS, TEXTS, OTHERS))))


def near(rng: random.Random, value: Any, choices: Sequence[Any] = ()) -> Any:
    """A value of the same kind that may well be right: another choice, a number not far away."""
    if choices and rng.random() < 0.8:
        return copy.deepcopy(rng.choice(choices))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + rng.choice(STEPS), value * 2, value // 2, *[rng.choice(INTEGERS)] * 2])
    if isinstance(value, float):
        return rng.choice([value * 2, value / 2, -value, round(rng.random(), 3), *[rng.choice(FLOATS)] * 3])
    if value is None:
        return rng.choice([1, 2, 0.5, 1.0, True, "a", {}, []])
    return hostile(rng)


def leaves(data: Any, at: Path = ()) -> Iterator[Path]:
    """The places of all values that hold no others; empty mappings and lists are such."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaves(value, (*at, key))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from leaves(value, (*at, index))
    else:
        yield at


def mappings(data: Any, at: Path = ()) -> Iterator[Path]:
    """The places of all mappings that hold something, the whole among them."""
    if isinstance(data, Mapping) and data:
        yield at
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from mappings(value, (*at, key))


def get(data: Any, at: Path) -> Any:
    """What is at a place."""
    for key in at:
        data = data[key]
    return data


def put(data: Any, at: Path, value: Any) -> None:
    """Put a value at a place."""
    get(data, at[:-1])[at[-1]] = value


def shown(at: Path) -> str:
    """A place as a configuration's error names it."""
    return ".".join(map(str, at)) or "everything"


def brief(value: Any, length: int = 60) -> str:
    """A value in one short line."""
    text = ascii(value)
    return text if len(text) <= length else f"{text[:length]}... ({len(text)} characters)"


def nearby_value(rng: random.Random, data: Any, choices: Mapping[str, Sequence[Any]]) -> str:
    """Change one value to another that may be right."""
    places = [at for at in leaves(data) if get(data, at) is not None]
    at = rng.choice(places if rng.random() < 0.8 else list(leaves(data)))  # few keys take just anything for null
    names = [key for key in at if isinstance(key, str)]
    value = near(rng, get(data, at), choices.get(names[-1] if names else "", ()))
    put(data, at, value)
    return f"{shown(at)} = {brief(value)}"


def extreme_number(rng: random.Random, data: Any) -> str:
    """Change one number to one of the same kind that is far away from it."""

    def is_number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    places = [at for at in leaves(data) if is_number(get(data, at))]
    at = rng.choice(places)
    value = rng.choice(INTEGERS if isinstance(get(data, at), int) and rng.random() < 0.8 else FLOATS)
    put(data, at, value)
    return f"{shown(at)} = {brief(value)}"


def hostile_value(rng: random.Random, data: Any) -> str:
    """Change one value, or one whole section, to something that few expect."""
    places = [at for at in (*leaves(data), *mappings(data)) if at]
    at, value = rng.choice(places), hostile(rng)
    put(data, at, value)
    return f"{shown(at)} = {brief(value)}"


def removed(rng: random.Random, data: Any) -> str:
    """Remove a key."""
    at = rng.choice(list(mappings(data)))
    key = rng.choice(list(get(data, at)))
    del get(data, at)[key]
    return f"without {shown((*at, key))}"


def renamed(rng: random.Random, data: Any) -> str:
    """Give a key another name."""
    at = rng.choice(list(mappings(data)))
    section = get(data, at)
    key = rng.choice(list(section))
    name = rng.choice([f"{key}s", key[:-1], key.upper(), f" {key}", rng.choice(TEXTS), 1, None, True, 1.5, "__class__"])
    section[name] = section.pop(key)
    return f"{shown((*at, key))} is called {brief(name)}"


def swapped(rng: random.Random, data: Any) -> str:
    """Let two values change places."""
    places = [at for at in (*leaves(data), *mappings(data)) if at]
    one, other = rng.sample(places, 2)
    if one[: len(other)] == other or other[: len(one)] == one:  # one holds the other
        return hostile_value(rng, data)
    first, second = get(data, one), get(data, other)
    put(data, one, second)
    put(data, other, first)
    return f"{shown(one)} and {shown(other)} swapped"


SHAPES: tuple[Callable[[random.Random, Any], str], ...] = (hostile_value, hostile_value, removed, renamed, swapped)
"""Changes after which data is seldom right."""


def damaged(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Bytes as a broken disk or a rude client would have them, and what was done to them."""
    size = max(1, len(data))
    place = rng.randrange(size)
    length = min(rng.choice((1, 4, 64, 4096)), size - place)
    cut, noise = data[:place], rng.randbytes(length)
    made: dict[str, Callable[[], bytes]] = {
        "truncated": lambda: cut,
        "emptied": lambda: b"",
        "bytes replaced": lambda: cut + noise + data[place + length :],
        "zeros": lambda: cut + bytes(length) + data[place + length :],
        "bit flipped": lambda: cut + bytes([(data[place] if data else 0) ^ 1 << rng.randrange(8)]) + data[place + 1 :],
        "bytes inserted": lambda: cut + noise + data[place:],
        "a piece doubled": lambda: cut + data[place : place + length] * 2 + data[place + length :],
        "noise alone": lambda: rng.randbytes(200),
    }
    kind = rng.choice(list(made))
    return made[kind](), f"{kind} at byte {place} of {len(data)}"
