"""A run at a glance: what its held-out rewards did, the same prompts before and after, and where to see why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from diffrl.gallery.columns import Column, default_reward, first_and_last, reward_names
from diffrl.gallery.compare import match
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.progress import Progress, progress, said
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Source
from diffrl.gallery.rows import View, views
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.tracking.trees import list_trees, tree_name

PAIRS = 12
TREES = 8
"""Iterations that the overview links to; the others are on the page of all trees."""
WIDE, HIGH = 240.0, 44.0


def run(site: Site, query: Query) -> Answer:
    """The page."""
    return overview(site, site.run(query.text("run")))


def overview(site: Site, source: RunSource) -> Answer:
    """The overview of a run; what of it cannot be read is said in its place."""
    notes: list[str] = []
    try:
        course: Progress | None = progress(source)
    except GalleryError as error:
        course = None
        notes.append(str(error))
    columns, shown, reward, missing = before_and_after(source, PAIRS)
    alarms, lines = said(source)
    summary, environment = (_json(source, name, notes) for name in ("summary.json", "environment.json"))
    values: dict[str, Any] = {
        "run": source,
        "notes": [*notes, *missing],
        "course": course,
        "written": _when(course.written) if course and course.written else "",
        "sparks": sparks(course) if course else [],
        "size": (WIDE, HIGH),
        "columns": columns,
        "views": shown,
        "reward": reward,
        "trees": first_trees(source),
        "alarms": alarms,
        "said": lines,
        "facts": facts(summary),
        "where": None if site.links.exported else source.path.resolve(),
        "config": source.read_text("config.yaml"),
        "environment": flat(environment),
    }
    return Answer(site.render("run.html", **values))


def before_and_after(source: Source, count: int) -> tuple[Sequence[Column], list[View], str | None, list[str]]:
    """The first pairs of the first and the last evaluation, in the order of the prompts; sentences if there are none.

    Args:
        source: a run, or a folder, whose pictures stand alone.
        count: of pairs.

    Returns:
        Columns, pairs, the reward that they show, and why there are none.
    """
    try:
        choice = first_and_last(source)
        if not choice.columns:
            return [], [], None, list(choice.notes)
        names = reward_names(choice.columns)
        reward = default_reward(choice.columns, names)
        briefs = [column.source.briefs(column.state, reward) for column in choice.columns]
        rows = match(briefs, [column.folder for column in choice.columns]).rows
        notes = list(choice.notes)
        if choice.columns[-1].state.stage not in ("eval", "folder"):
            notes.append("This run has no held-out evaluation: what is shown was drawn otherwise.")
        if not rows:
            notes.append(
                f"{choice.columns[0].label} and {choice.columns[-1].label} have no prompt and noise in common."
            )
        return choice.columns, views(choice.columns, rows[:count], names), reward, notes
    except GalleryError as error:
        return [], [], None, [str(error)]


def first_trees(source: RunSource) -> list[tuple[int, str, int]]:
    """Iteration, name of its first tree and number of its trees; of many iterations the first, the last and some."""
    kept = list_trees(source.path)
    iterations = list(dict.fromkeys(iteration for iteration, _ in kept))
    every = -(-len(iterations) // TREES)
    chosen = [n for place, n in enumerate(iterations) if place % every == 0 or place == len(iterations) - 1]
    groups = {n: [group for iteration, group in kept if iteration == n] for n in chosen}
    return [(n, tree_name(n, groups[n][0]), len(groups[n])) for n in chosen]


def sparks(course: Progress) -> list[tuple[str, str, float, float]]:
    """Small curves: name, SVG points, first and last value; rewards that have at least two numbers."""
    names = [change.name for change in course.headline]
    series: list[tuple[str, list[tuple[int, float | None]]]] = [
        (f"held-out {name}", [(n, values.get(name)) for n, values in course.evaluations]) for name in names
    ]
    series.append(("training reward", list(course.training)))
    found = []
    for name, raw in series:
        points = [(n, value) for n, value in raw if value is not None]
        if len(points) > 1:
            found.append((name, polyline(points), points[0][1], points[-1][1]))
    return found


def polyline(points: Sequence[tuple[int, float]]) -> str:
    """Points of an SVG polyline that fills `WIDE` x `HIGH`, with a margin of 3."""
    xs, ys = [float(x) for x, _ in points], [y for _, y in points]
    spans = (max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0)
    return " ".join(
        f"{3 + (x - min(xs)) / spans[0] * (WIDE - 6):.1f},{HIGH - 3 - (y - min(ys)) / spans[1] * (HIGH - 6):.1f}"
        for x, y in zip(xs, ys, strict=True)
    )


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the end of the run told of its cost; numbers that are not there, or are none, are left out."""
    seconds, cost, memory = summary.get("seconds"), summary.get("cost"), summary.get("peak_memory_bytes")
    found = []
    if isinstance(seconds, dict) and all(isinstance(value, (int, float)) for value in seconds.values()):
        found.append(
            ("time", f"{sum(seconds.values()):,.0f} s, {seconds.get('evaluation', 0):,.0f} s of them evaluation")
        )
    if isinstance(cost, dict) and isinstance(cost.get("evaluations"), int):
        found.append(("training cost", f"{cost['evaluations']:,} network evaluations"))
    if isinstance(memory, int):
        found.append(("peak memory", f"{memory / 2**30:.2f} GiB"))
    if isinstance(summary.get("updates"), int):
        found.append(("updates", f"{summary['updates']:,}"))
    return found


def flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A JSON object as names and texts, names joined by dots."""
    found: list[tuple[str, str]] = []
    for name, value in tree.items():
        found += flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", str(value))]
    return found


def _json(source: RunSource, name: str, notes: list[str]) -> dict[str, Any]:
    try:
        return source.read_json(name)
    except GalleryError as error:
        notes.append(str(error))
        return {}


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
