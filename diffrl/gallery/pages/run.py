"""A run at a glance: what its held-out rewards did, the same prompts before and after, and where to see why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from diffrl.gallery.costs import costs_of
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.overview import (
    Pairs,
    before_and_after,
    flat,
    intervals,
    lead,
    led_out,
    missing,
    mixed,
    read_json,
    resumptions,
)
from diffrl.gallery.progress import Change, Progress, log_messages, marks, progress, setting
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.rows import folded
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import track_of
from diffrl.gallery.site import Site
from diffrl.trees.record import tree_name

PAIRS, WORST = 12, 5
"""Pairs before and after, and of those that lost most."""
TREES = 8
"""Iterations that the overview links to; the others are on the page of all trees."""
WIDE, HIGH = 240.0, 44.0


def run(site: Site, query: Query) -> Answer:
    """Return the page."""
    return overview(site, site.run(query.text("run")))


def overview(site: Site, source: RunSource) -> Answer:
    """Return the overview of a run."""
    values, trees = run_values(site, source), first_trees(site.trees(source))
    small = sparks(values["course"]) if values["course"] else []
    return Answer(site.render("run.html", **values, trees=trees, sparks=small, size=(WIDE, HIGH), report=None))


def run_values(site: Site, source: RunSource) -> dict[str, Any]:
    """Return what the page of a run and its report both show; what cannot be read is a sentence among `notes`."""
    notes: list[str] = []
    try:
        course: Progress | None = progress(source)
    except GalleryError as error:
        course = None
        notes.append(str(error))
    pairs = before_and_after(source, PAIRS, WORST)
    alarms, log = log_messages(source)
    known = intervals(source, pairs, course)
    summary, environment = (read_json(source, name, notes) for name in ("summary.json", "environment.json"))
    track, last = track_of(source), pairs.columns[-1].state if pairs.columns else None
    alarmed = [(row["iteration"], finite(row.get("sentinel/alarms"))) for row in (course.rows if course else ())]
    return {
        "run": source,
        "notes": [*notes, *led_out(source), *mixed(source), *missing(course, last), *pairs.notes],
        "course": course,
        "written": _when(course.written) if course and course.written else "",
        "numbers": numbers(course.changes) if course else [],
        "means": means(source, pairs),
        "intervals": known,
        "lead": lead(course.headline, course, known) if course and course.evaluations else "",
        "pairs": pairs,
        "alarms": alarms,
        "log": log,
        "sentinel": [(iteration, int(count)) for iteration, count in alarmed if count],
        "marks": marks(course),
        "costs": costs_of(summary, track),
        "where": None if site.links.exported else source.path.resolve(),
        "config": source.read_text("config.yaml"),
        "environment": flat({name: value for name, value in environment.items() if name != "resumed"}),
        "resumed": resumptions(environment),
    }


def numbers(changes: Sequence[Change]) -> list[tuple[str, Change]]:
    """Return every held-out number by its name, or its names."""
    return folded((one.name, (one.before, one.after, one.lower), one) for one in changes)


def means(source: RunSource, pairs: Pairs) -> str:
    """Return what the held-out numbers are means over, where an evaluation has more samples than are kept; else ""."""
    last = pairs.columns[-1].state if pairs.columns else None
    every = setting(source, "samples", "eval")
    if last is None or last.stage != "eval" or type(every) is not int or every <= last.samples:
        return ""
    return f"over all {every:,} samples of an evaluation, {last.samples:,} of which are kept"


def first_trees(kept: Sequence[tuple[int, int]]) -> list[tuple[int, str, int]]:
    """Iteration, name of its first tree and number of its trees; of many iterations the first, the last and some."""
    iterations = list(dict.fromkeys(iteration for iteration, _ in kept))
    every = -(-len(iterations) // TREES)
    chosen = [n for i, n in enumerate(iterations) if i % every == 0 or i == len(iterations) - 1]
    groups = {n: [group for iteration, group in kept if iteration == n] for n in chosen}
    return [(n, tree_name(n, groups[n][0]), len(groups[n])) for n in chosen]


def sparks(course: Progress) -> list[tuple[str, str, float, float]]:
    """Return small curves: name, SVG points, first and last value; rewards that have at least two numbers."""
    names = [change.name for change in course.headline]
    series: list[tuple[str, list[tuple[int, float | None]]]] = [
        (f"held-out {name}", [(n, values.get(name)) for n, values in course.evaluations]) for name in names
    ]
    series.append(("training reward", list(course.training)))
    small = []
    for name, raw in series:
        points = [(n, value) for n, value in raw if value is not None]
        if len(points) > 1:
            small.append((name, polyline(points), points[0][1], points[-1][1]))
    return small


def polyline(points: Sequence[tuple[int, float]]) -> str:
    """Return points of an SVG polyline that fills `WIDE` x `HIGH`, with a margin of 3."""
    xs, ys = [float(x) for x, _ in points], [y for _, y in points]
    spans = (max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0)
    return " ".join(
        f"{3 + (x - min(xs)) / spans[0] * (WIDE - 6):.1f},{HIGH - 3 - (y - min(ys)) / spans[1] * (HIGH - 6):.1f}"
        for x, y in zip(xs, ys, strict=True)
    )


def _when(seconds: float) -> str:
    """Write a time of the calendar; "" of one beyond it, as a clock gone wrong leaves on files."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return ""
