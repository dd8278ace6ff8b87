"""A run's metrics as lines: gaps kept, thinned for the screen without losing an extreme, and all of them as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from diffrl.gallery.numbers import csv_text
from diffrl.gallery.panels import AXIS_COLUMNS, Panel, is_evaluated
from diffrl.gallery.series import Row, Track

AXES = {
    "iteration": ("iteration", "iteration"),
    "evaluations": ("cost/evaluations", "network evaluations"),
    "seconds": ("cost/seconds", "seconds of training"),
}
"""What curves can be drawn against: the column, and its words."""
LIMIT, BUDGET = 2000, 150_000
"""Points of a line, and of a page, above which lines are thinned."""
HUGE = 1e300
"""Size above which a number is not drawn: an axis that is a little longer than it would leave all floats."""

Point = tuple[int, float]
"""A row and the value there, NaN for a gap."""


@dataclass(frozen=True)
class Line:
    """A metric of a run."""

    track: int  # place of its run among the runs that are shown
    column: str  # its name in metrics.jsonl
    label: str
    colour: int  # place in the palette
    dash: int  # place among the dashes
    points: Sequence[Point]  # of the run, nothing thinned


def columns_of(tracks: Sequence[Track]) -> list[str]:
    """Return columns that hold a number somewhere, in the order in which they first appear."""
    every = dict.fromkeys(name for track in tracks for name in track.columns)
    held = [{name for name, column in track.columns.items() if any(v == v for v in column.values)} for track in tracks]
    return [name for name in every if any(name in names for names in held)]


def points_of(track: Track, name: str) -> list[Point]:
    """Return the points of a metric.

    A null is a gap. So is a row without the metric, unless it belongs to evaluations, which are not made at each row.
    """
    if name not in track.columns:
        return []
    column, sparse = track.columns[name], is_evaluated(name)
    total, contiguous = sum(column.values), len(column.rows) == column.rows[-1] - column.rows[0] + 1
    if total == total and (sparse or contiguous):  # the common case, by far the quickest
        return list(zip(column.rows, column.values, strict=True))
    points: list[Point] = []
    after, gap = 0, True  # no gap before the first value
    for row, value in zip(column.rows, column.values, strict=True):
        if not gap and (value != value or (row > after and not sparse)):
            points.append((row if value != value else after, math.nan))
            gap = True
        if value == value:
            points.append((row, value))
            gap = False
        after = row + 1 if value == value else after
    return points[:-1] if points and gap else points


def thin(points: Sequence[Point], limit: int = LIMIT) -> list[Point]:
    """Return at most `limit` points: the first, the last, and the lowest, highest and a gap of each bucket."""
    if len(points) <= limit:
        return list(points)
    import numpy as np

    values = np.array([value for _, value in points[1:-1]])
    gaps = np.isnan(values)
    width = -(-len(values) // ((limit - 2) // (3 if gaps.any() else 2)))
    filled = np.concatenate([values, np.full(-len(values) % width, np.nan)]).reshape(-1, width)
    empty = np.isnan(filled)
    starts = 1 + width * np.arange(len(filled))
    chosen = {0, len(points) - 1}
    for worst, best in ((np.inf, np.argmin), (-np.inf, np.argmax)):
        chosen.update((starts + best(np.where(empty, worst, filled), axis=1))[~empty.all(axis=1)].tolist())
    chosen.update((starts + empty.argmax(axis=1))[empty.any(axis=1)].tolist())
    return [points[i] for i in sorted(chosen) if i < len(points)]


def lines_of(panel: Panel, tracks: Sequence[Track], colours: Mapping[str, int] | None = None) -> list[Line]:
    """Return the lines of a panel: several runs differ by colour, else metrics do; dashes differ as well.

    Args:
        panel: which.
        tracks: of the runs.
        colours: places of the runs in the palette, by their keys; None takes them in their order.
    """
    lines, single = [], len(panel.columns) == 1
    for t, track in enumerate(tracks):
        for c, column in enumerate(panel.columns):
            points = points_of(track, column)
            if not points:
                continue
            label, colour, dash = panel.name(column), c, c
            if len(tracks) > 1:
                label = track.title if single else f"{track.title} · {label}"
                colour = (colours or {}).get(track.key, t)
                dash = colour if single else c
            lines.append(Line(t, column, plain(label), colour, dash, points))
    return lines


def plain(text: str) -> str:
    """Return a name without what neither XML nor a terminal can hold: control characters, halves of characters."""
    return "".join(c if c.isprintable() or c == " " else "\ufffd" for c in text)


def summary_of(panel: Panel, line: Line) -> dict[str, str]:
    """Return first, last, lowest and highest value of a line in words, in the panel's units."""
    values = [value * panel.scale for _, value in line.points if value == value]
    extremes = {"first": values[0], "last": values[-1], "low": min(values), "high": max(values)}
    words = {name: brief(value) for name, value in extremes.items()}
    return {"label": line.label, "count": f"{len(values):,}", **words}


def brief(value: float | None) -> str:
    """Return four digits, whatever the size; a dash where there is none."""
    if value is None:
        return "–"
    size = abs(value)
    form = ",.0f" if size >= 1000 else ".4g"
    if size and not 1e-3 <= size < 1e7:
        form = ".2e"
    return f"{value:{form}}".replace("-", "−")


def page_data(
    panels: Sequence[Panel],
    lines: Mapping[str, Sequence[Line]],
    tracks: Sequence[Track],
    x: str,
    marked: Sequence[Mapping[int, str]] = (),
) -> dict[str, Any]:
    """Return what the page's script draws: all three axes of every run, and the lines as rows and values.

    Values have six digits. `changes` are each run's rows after which it went on with other inputs, `marks` its rows
    with what they are marked as (`marked`, by iteration). `thinned` is the number of points that a line was cut down
    to, None if none was.
    """
    limit = max(200, min(LIMIT, BUDGET // max(1, sum(map(len, lines.values())))))
    thinned = any(len(line.points) > limit for of_panel in lines.values() for line in of_panel)
    shown = []
    for panel in panels:
        entries = []
        bands = [track.along(panel.band) for track in tracks] if panel.band else []
        for line in lines[panel.id]:
            points = thin(line.points, limit)
            entry = {"run": line.track, "label": line.label, "colour": line.colour, "dash": line.dash}
            entry |= {"at": [row for row, _ in points], "y": [_short(value, panel.scale) for _, value in points]}
            if bands:
                entry["band"] = [_short(bands[line.track][row], panel.scale) for row, _ in points]
            entries.append(entry)
        shown.append({"id": panel.id, "unit": panel.unit, "marks": panel.evaluated, "lines": entries})
    axes = {
        name: [[_short(value) for value in track.along(column)] for track in tracks]
        for name, (column, _) in AXES.items()
    }
    marks = [
        [(row, words_of[at]) for row, at in enumerate(track.along("iteration")) if at in words_of]
        for track, words_of in zip(tracks, marked, strict=False)
    ]
    return {
        "x": x,
        "words": {name: words for name, (_, words) in AXES.items()},
        "axes": axes,
        "panels": shown,
        "changes": [track.changed_rows for track in tracks],
        "marks": marks,
        "thinned": limit if thinned else None,
    }


def is_drawn(value: float | None) -> TypeGuard[float]:
    """Return whether a value has a place in a drawing; else there is a gap."""
    return value is not None and abs(value) <= HUGE  # no NaN is


def _short(value: float | None, scale: float = 1.0) -> float | int | None:
    if not is_drawn(value):
        return None
    short = value * scale
    if short.is_integer() and abs(short) < 2**53:
        return int(short)
    return float(f"{short:.6g}")


def csv_of(runs: Sequence[tuple[str, Sequence[Row]]], columns: Sequence[str] | None = None) -> str:
    """Return a line for each row of metrics, nothing thinned: run, the three axes, then the metrics.

    Args:
        runs: key and rows of each.
        columns: metrics that are wanted; None is all. With some, rows without any of them are left out.
    """
    every = dict.fromkeys(name for _, rows in runs for row in rows for name in row) if columns is None else columns
    names = [name for name in every if name not in AXIS_COLUMNS]
    lines: list[list[object]] = [["run", *AXIS_COLUMNS, *names]]
    for key, rows in runs:
        kept = [row for row in rows if columns is None or any(name in row for name in names)]
        lines += [[key, *(row.get(name) for name in (*AXIS_COLUMNS, *names))] for row in kept]
    return csv_text(lines)
