"""Rows of samples as templates show them: the cells side by side, and every reward of them as a table."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from diffrl.gallery.columns import Column
from diffrl.gallery.compare import Row, difference
from diffrl.gallery.numbers import finite
from diffrl.gallery.records import Sample

PAGE, FEWEST, CELLS = 24, 12, 60
"""Rows of a comparison that are shown at once: the most, the fewest, and their cells; see `per_page`."""
EXPORTED = 2000
"""Rows that an exported page holds."""


def per_page(columns: int) -> int:
    """Return rows that are shown at once, fewer of many columns: a page has an end on a phone, too."""
    return max(FEWEST, min(PAGE, CELLS // max(1, columns)))


@dataclass(frozen=True)
class Cell:
    """One column of a row."""

    column: Column
    sample: Sample | None  # None where the column has no such sample
    value: float | None  # of the chosen reward


@dataclass(frozen=True)
class Line:
    """A reward in all columns; `change` is that of the compared ones, `lower` whether less is better."""

    name: str
    values: Sequence[float | None]
    change: float | None
    lower: bool = False


@dataclass(frozen=True)
class View:
    """A row."""

    order: int  # place in the unsorted list
    prompt: str
    name: str  # of its file, "" of samples of runs
    cells: Sequence[Cell]  # one a column
    change: float | None  # of the chosen reward
    rewards: Sequence[Line]  # every reward that any of the cells has
    lower: Collection[str] = ()  # names of rewards of which less is better
    compared: int = -1  # place of the cell that the change belongs to

    @property
    def listed(self) -> list[tuple[str, Line]]:
        """The rewards as a table lists them; see `folded`."""
        return folded((line.name, (tuple(line.values), line.lower), line) for line in self.rewards)

    @property
    def data(self) -> dict[str, Sequence[float | None]]:
        """Values by reward in full precision, for the script of an exported page; None for what is no number."""
        return {line.name: [finite(value) for value in line.values] for line in self.rewards}


def views(
    columns: Sequence[Column], rows: Sequence[Row], names: Sequence[str], lower: Collection[str] = ()
) -> list[View]:
    """Return rows with their samples: one question a column, whatever the number of rows."""
    samples_of: list[dict[int | None, Sample]] = []
    for index, column in enumerate(columns):
        ids = [number for row in rows if (number := row.ids[index]) is not None]
        samples_of.append({sample.id: sample for sample in column.source.samples(column.state, ids)})
    shown = []
    for row in rows:
        samples = [of_column.get(number) for of_column, number in zip(samples_of, row.ids, strict=True)]
        cells = [Cell(*parts) for parts in zip(columns, samples, row.values, strict=True)]
        lines = []
        for name in names:
            values = [None if sample is None else sample.value(name) for sample in samples]
            if any(value is not None for value in values):
                lines.append(Line(name, values, difference(values, row.pair), name in lower))
        compared = row.pair[0] % len(cells)
        shown.append(View(row.order, row.prompt, row.name, cells, row.change, lines, lower, compared))
    return shown


Folded = TypeVar("Folded")


def folded(lines: Iterable[tuple[str, Hashable, Folded]]) -> list[tuple[str, Folded]]:
    """Return the lines of a table, equal parts in one: "shapes_strict/colour = shapes/colour".

    Args:
        lines: of each the reward's name, all that the table shows of it besides, and what it is.

    Returns:
        The names of each line and the first of what it stands for, in their order. Whole rewards keep lines of their
        own, and so do parts that are called otherwise or differ in anything.
    """
    names: dict[Hashable, list[str]] = {}
    firsts: dict[Hashable, Folded] = {}
    for name, shown, line in lines:
        _, _, part = name.partition("/")
        key = (part or None, name if not part else None, shown)
        names.setdefault(key, []).append(name)
        firsts.setdefault(key, line)
    return [(" = ".join(names[key]), line) for key, line in firsts.items()]
