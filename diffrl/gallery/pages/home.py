"""The start: one run's overview, or the table of runs, and the folders of images beside them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.files import read_own
from diffrl.gallery.numbers import finite, signed, three
from diffrl.gallery.pages.compare import compare
from diffrl.gallery.pages.curves import measured_alike
from diffrl.gallery.pages.run import overview
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, csv_answer, describe_reward
from diffrl.gallery.run_table import Entry, Row, arm_row, arms_of, differing, entries_of, rewards_of
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.tracking.places import place

PNG = b"\x89PNG"
COLUMNS = 4
"""Settings that are columns of the table unless the address names others."""


@dataclass(frozen=True)
class Table:
    """What the table of runs shows."""

    rows: Sequence[Row]  # a row each arm, in the order in which they began
    rewards: Sequence[str]  # that there are
    reward: str  # the chosen one; "" without any
    lower: bool  # whether less of it is better
    base: Row | None  # the row of the baseline; None without any run
    names: Sequence[str]  # of the settings in which runs differ
    chosen: Sequence[str]  # those of them that are columns

    @property
    def entries(self) -> list[Entry]:
        """All runs."""
        return [entry for row in self.rows for entry in row.entries]

    @property
    def training(self) -> int:
        """How many of them go on."""
        return sum(entry.course is not None and entry.course.state == "running" for entry in self.entries)


def home(site: Site, query: Query) -> Answer:
    """Return the page."""
    sources = site.sources
    if len(sources) == 1:
        source = sources[0]
        return overview(site, source) if isinstance(source, RunSource) else compare(site, Query())
    if sources and not site.runs:  # folders were given to be compared
        return compare(site, query)
    table = table_of(site, query)
    values = {
        "table": table,
        "headline": headline(table),
        "folders": [source for source in sources if source.kind == "folder"],
        "comparisons": comparisons(site.runs),
        "asked": {name: query.all(name) for name in ("reward", "baseline", "keys")},
    }
    return Answer(site.render("home.html", **values))


def table_of(site: Site, query: Query) -> Table:
    """Return the table that an address asks for: `reward`, `baseline` (a run's key) and `keys` (settings)."""
    entries = entries_of(site)
    arms, rewards, names = arms_of(entries), rewards_of(entries), differing(entries)
    reward = query.text("reward") if query.text("reward") in rewards else next(iter(rewards), "")
    pinned = query.text("baseline")
    base = next((arm for arm in arms if any(entry.run.key == pinned for entry in arm)), None)
    base = base or next((arm for arm in arms if any(entry.change(reward) for entry in arm)), arms[0] if arms else [])
    rows = [arm_row(site, arm, base, reward) for arm in arms]
    chosen = [name for name in names if name in query.all("keys")] or names[:COLUMNS]
    lower = any(change.lower for row in rows for change in row.changes)
    return Table(rows, rewards, reward, lower, next((row for row in rows if row.entries is base), None), names, chosen)


def headline(table: Table) -> str:
    """Return which arm's last evaluation is best by the chosen reward, where all are measured alike."""
    known = [(row.mean.mean, row) for row in table.rows if row.mean]
    if len(known) < 2 or len(known) < len(table.rows) or not measured_alike([entry.run for entry in table.entries]):
        return ""
    best = min(value for value, _ in known) if table.lower else max(value for value, _ in known)
    rows = [row for value, row in known if value == best]
    if len(rows) > 1:
        return ""
    seeds = f", {len(rows[0].entries)} seeds" if rows[0].seeds else ""
    name = describe_reward(table.reward, table.lower)
    words = f"{'Lowest' if table.lower else 'Highest'} held-out {name}: {rows[0].title}, {three(best)}{seeds}"
    estimate = rows[0].difference.estimate if rows[0].difference else None
    if table.base is None or estimate is None or estimate.low is None:
        return words
    interval = f"95 % {signed(estimate.low)} to {signed(estimate.high)}"
    return f"{words}; {signed(estimate.mean)} over {table.base.title}, {interval}"


def comparisons(runs: Sequence[RunSource]) -> list[dict[str, Any]]:
    """Return what `diffrl compare` found in the folders that runs lie in: its pairs, its power and its figure."""
    entries = []
    for folder in dict.fromkeys(run.path.absolute().parent.parent for run in runs):
        try:
            results = json.loads(read_own(place(folder, "results.json")))
            pairs = [(one["second"], one["first"], numbers(one), one["finding"]) for one in results["pairs"]]
            figure = place(folder, "figure.png")
            image = read_own(figure) if figure.is_file() else b""
        except (DiffrlError, OSError, ValueError, RecursionError, TypeError, KeyError):
            continue  # no comparison, or none that can be read
        address = f"data:image/png;base64,{base64.b64encode(image).decode()}" if image.startswith(PNG) else ""
        entries.append({"title": folder.name, "pairs": pairs, "power": results.get("power"), "figure": address})
    return entries


def numbers(pair: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a pair's difference; None for one that is none."""
    return {name: finite(pair["difference"].get(name)) for name in ("n", "mean", "low", "high")}


def runs_csv(site: Site, query: Query) -> Answer:
    """Return the table as CSV, a line each run, with every setting in which runs differ; what is not known is empty."""
    table = table_of(site, query)
    numbers = ("first", "last", "best", "best after", "difference", "low", "high", "interval", "evaluations", "seconds")
    lines: list[list[object]] = [["arm", "run", "seed", "state", "alarms", "reward", *numbers, *table.names]]
    for arm in table.rows:
        for row in arm.seeds or [arm]:
            entry, change = row.entries[0], next(iter(row.changes), None)
            estimate = row.difference.estimate if row.difference else None
            line = [
                arm.title,
                entry.run.title,
                entry.seed,
                entry.course and entry.course.state,
                len(entry.alarms),
                table.reward,
                change and change.before,
                change and change.after,
                row.best,
                row.best_at,
                estimate and estimate.mean,
                estimate and estimate.low,
                estimate and estimate.high,
                row.difference and row.difference.words,
                row.cost("evaluations"),
                row.cost("seconds"),
            ]
            lines.append([*line, *(entry.settings.get(name) for name in table.names)])
    return csv_answer(lines, "runs.csv")
