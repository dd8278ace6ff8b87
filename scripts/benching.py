"""Take turns in a benchmark: variants alternate, so that whatever else the machine does hits all of them.

Ratios are those within a turn.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def take_turns(variants: Mapping[str, Callable[[], T]], turns: int, warm_up: bool = True) -> dict[str, list[T]]:
    """Return what every turn of every variant gives; the order is turned round from turn to turn.

    Args:
        variants: by their names.
        turns: of each.
        warm_up: whether each has a turn before that does not count.
    """
    if warm_up:
        for run in variants.values():
            run()
    measured: dict[str, list[T]] = {name: [] for name in variants}
    for turn in range(turns):
        for name in list(variants)[:: 1 if turn % 2 == 0 else -1]:
            measured[name].append(variants[name]())
    return measured


def ratio(values: Sequence[float], to: Sequence[float]) -> float:
    """Return the median over the turns of one variant's value, divided by another's of the same turn."""
    return statistics.median(value / other for value, other in zip(values, to, strict=True))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table whose columns but the first are numbers."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def write_json(out: Path | None, **measured: Any) -> None:
    """Write what was measured to a file, if one is named."""
    if out:
        out.write_text(json.dumps(measured, indent=2), encoding="utf-8")
