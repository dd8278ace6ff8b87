"""Parts of rewards: two scorers of one world report the same facts, which stand in one line of a table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Line = TypeVar("Line")


def folded(lines: Iterable[tuple[str, Hashable, Line]]) -> list[tuple[str, Line]]:
    """The lines of a table, equal parts in one: "shapes_strict/colour = shapes/colour".

    Args:
        lines: of each the reward's name, all that the table shows of it besides, and what it is.

    Returns:
        The names of each line and the first of what it stands for, in their order. Whole rewards keep lines of their
        own, and so do parts that are called otherwise or differ in anything.
    """
    names: dict[Hashable, list[str]] = {}
    firsts: dict[Hashable, Line] = {}
    for name, shown, line in lines:
        _, _, part = name.partition("/")
        key = (part or None, name if not part else None, shown)
        names.setdefault(key, []).append(name)
        firsts.setdefault(key, line)
    return [(" = ".join(names[key]), line) for key, line in firsts.items()]
