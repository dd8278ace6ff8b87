"""Damage to the text of a YAML file: what a parser meets before any rule of ours is asked."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.attacks.mutate import damaged

DEEP = 100_000


BOMB = (
    "[&b0 [x, x, x, x, x, x, x, x, x, x]"
    + "".join(f", &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 10))
    + "]"
)
"""A list of ten lists of ten lists ..., ten levels: 10^10 values in a few hundred bytes."""


def in_front(line: str) -> Callable[[random.Random, str], str]:
    """A line before all others."""
    return lambda rng, text: f"{line}\n{text}"


def in_place_of_a_value(value: str) -> Callable[[random.Random, str], str]:
    """The value of one line becomes another."""

    def change(rng: random.Random, text: str) -> str:
        lines = text.splitlines()
        places = [number for number, line in enumerate(lines) if line.partition(": ")[2]]
        number = rng.choice(places)
        lines[number] = f"{lines[number].partition(': ')[0]}: {value}"
        return "\n".join(lines) + "\n"

    return change


def doubled(rng: random.Random, text: str) -> str:
    """One line stands twice."""
    lines = text.splitlines()
    place = rng.randrange(len(lines))
    return "\n".join([*lines[:place], lines[place], *lines[place:]]) + "\n"


TEXTS: dict[str, Callable[[random.Random, str], str]] = {
    "an alias bomb": in_place_of_a_value(BOMB),
    "an alias bomb in a new section": in_front(f"more: {BOMB}"),
    "an alias bomb as a key": in_front(f"? {BOMB}\n: 1"),
    "a list that holds itself": in_place_of_a_value("&a [*a]"),
    "a mapping that holds itself": in_place_of_a_value("&a {x: *a}"),
    "an object's tag": in_place_of_a_value("!!python/object/apply:time.sleep [1]"),
    "a tag": in_place_of_a_value("!!binary aGVsbG8="),
    "a set": in_place_of_a_value("!!set {a, b}"),
    "a date": in_place_of_a_value("2020-02-30"),
    "a merge key": in_place_of_a_value("{<<: [1, 2]}"),
    "a surrogate": in_place_of_a_value(r'"\ud800"'),
    "a zero byte": in_place_of_a_value(r'"\0"'),
    "a number of many digits": in_place_of_a_value("9" * 10_000),
    "base sixty": in_place_of_a_value("1:30:00"),
    "octal": in_place_of_a_value("0o17"),
    "an open quote": in_place_of_a_value('"'),
    "an unknown alias": in_place_of_a_value("*nobody"),
    "a name of 100,000 characters": in_front(f"{'k' * 100_000}: 1"),
    "deep lists": in_place_of_a_value("[" * DEEP),
    "deep mappings": in_place_of_a_value("{a: " * DEEP),
    "deep, and closed": in_place_of_a_value("[" * 900 + "]" * 900),
    "two documents": in_front("a: 1\n---"),
    "a directive": in_front("%YAML 9.9\n---"),
    "a list": lambda rng, text: "".join(f"- {line}\n" for line in text.splitlines()),
    "tabs": lambda rng, text: text.replace("  ", "\t"),
    "a line twice": doubled,
    "Windows' line ends": lambda rng, text: text.replace("\n", "\r\n"),
    "a raw zero byte": lambda rng, text: text[: len(text) // 2] + "\0" + text[len(text) // 2 :],
}


def broken_text(rng: random.Random, text: str) -> tuple[bytes, str]:
    """A file's bytes, damaged, and what was done to them."""
    kind = rng.choice([*TEXTS, "encoding", "bytes", "bytes", "bytes"])
    if kind == "bytes":
        return damaged(rng, text.encode())
    if kind == "encoding":
        encoding = rng.choice(["utf-8-sig", "utf-16", "utf-32", "latin-1"])
        return ("# é\n" + text).encode(encoding), f"in {encoding}"
    return TEXTS[kind](rng, text).encode(), kind
