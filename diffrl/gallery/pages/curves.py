"""The curves of one or many runs: a page, and the same as CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from diffrl.gallery.columns import latents
from diffrl.gallery.curves import AXES, Line, columns_of, csv_of, lines_of, page_data, summary_of
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.overview import mixed
from diffrl.gallery.panels import ALWAYS, BEFORE, OWN_POLICY, Panel, panels_of
from diffrl.gallery.progress import marked, setting, updates_once
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.runs import RunSource, mark
from diffrl.gallery.series import Track, track_of
from diffrl.gallery.site import Site


def curves(site: Site, query: Query) -> Answer:
    """Return the page; see `PAGES` for its parameters."""
    runs, x = _runs(site, query), query.choice("x", AXES, "iteration")
    tracks = [track_of(run) for run in runs]
    panels = panels_of(columns_of(tracks), len(tracks))
    colours = site.colours
    lines = {panel.id: lines_of(panel, tracks, colours) for panel in panels}
    panels = explained(panels, lines) if all(updates_once(run) for run in runs) else panels
    if not measured_alike(runs):
        panels = [replace(panel, note=OTHERWISE) if panel.note == ALWAYS else panel for panel in panels]
    keys = [run.key for run in runs]
    return Answer(
        site.render(
            "curves.html",
            layout="run_base.html" if len(runs) == 1 else "base.html",
            run=runs[0],
            shown=[{"key": run.key, "title": run.title, "colour": colours[run.key] % 8} for run in runs],
            others=[run for run in site.runs if run.key not in keys],
            x=x,
            axes={name: words for name, (_, words) in AXES.items()},
            problems=[(track.title, track.problem) for track in tracks if track.problem],
            changes=[(run.title, words) for run in runs for words in mixed(run)],
            headline=headline(panels, lines),
            sections=_sections(site, panels, lines, keys),
            data=page_data(panels, lines, tracks, x, [marked(run) for run in runs]),
            all_csv=site.links.page("curves.csv", run=keys),
        )
    )


def headline(panels: Sequence[Panel], lines: Mapping[str, Sequence[Line]]) -> str:
    """Return the first panel's first and last values; of more than `NAMED` lines those that end lowest and highest."""
    if not panels or not lines[panels[0].id]:
        return "Curves"
    panel = panels[0]
    summaries = [summary_of(panel, line) for line in lines[panel.id]]
    if len(summaries) <= NAMED:
        names = [f"{one['label']} " if len(summaries) > 1 else "" for one in summaries]
        ways = [f"{name}{one['first']} → {one['last']}" for name, one in zip(names, summaries, strict=True)]
        return f"{panel.title}: {', '.join(ways)}"
    ends = sorted((next(v for _, v in reversed(line.points) if v == v), n) for n, line in enumerate(lines[panel.id]))
    low, high = (summaries[n] for _, n in (ends[0], ends[-1]))
    return f"{panel.title} ends between {low['last']} ({low['label']}) and {high['last']} ({high['label']})"


NAMED = 3
"""Lines whose values the page's first words all give."""
OTHERWISE = "mean; each run by its own prompts, noise, samples or steps: heights do not compare"


def measured_alike(runs: Sequence[RunSource]) -> bool:
    """Return whether the held-out numbers of runs are of the same prompts and noise, drawn in the same way."""
    names = ("samples", "seed", "steps", "solver", "guidance_scale")

    def how(run: RunSource) -> tuple[str, ...]:
        return latents(run), str(setting(run, "eval", "prompts")), *(str(setting(run, name, "eval")) for name in names)

    return len({how(run) for run in runs}) == 1


def explained(panels: Sequence[Panel], lines: Mapping[str, Sequence[Line]]) -> list[Panel]:
    """Return panels of runs of one update an iteration; those that stand still for that reason say so."""
    still = {
        panel.id
        for panel in panels
        if panel.id in OWN_POLICY and all(len({v for _, v in line.points if v == v}) == 1 for line in lines[panel.id])
    }
    return [replace(panel, note=f"{panel.note}; {BEFORE}") if panel.id in still else panel for panel in panels]


def curves_csv(site: Site, query: Query) -> Answer:
    """Return all metrics, or those of a panel, as CSV; nothing is thinned. Made once for what the runs have written."""
    runs, panel = _runs(site, query), query.text("panel")
    text = site.tables.get((panel, *_written(runs)), lambda: _listed(runs, query))
    return Answer(text or "", "text/csv; charset=utf-8", filename=_filename(runs, panel))


def _listed(runs: Sequence[RunSource], query: Query) -> str:
    tracks = [track_of(run) for run in runs]
    panel = _panel(query, tracks)
    columns = panel and [column for column in (*panel.columns, panel.band) if column]
    rows = [(run.key, [] if track.problem else run.metrics()) for run, track in zip(runs, tracks, strict=True)]
    return csv_of(rows, columns)


def _written(runs: Sequence[RunSource]) -> list[tuple[object, ...]]:
    """Return what changes as the runs go on."""
    files = ("metrics.jsonl", "summary.json", "environment.json")
    return [(run.key, run.title, str(run.path), *(mark(run.path / name) for name in files)) for run in runs]


def _runs(site: Site, query: Query) -> list[RunSource]:
    keys = list(dict.fromkeys(query.all("run")))
    runs = [site.run(key) for key in keys] or site.runs
    if not runs and not site.sources:
        raise GalleryError("No run has begun here yet, so there are no curves. The start page waits for one.", 404)
    if not runs:
        raise GalleryError("Curves are of runs. Got only folders of images. Give the directory of a run.", 404)
    return runs


def _panel(query: Query, tracks: Sequence[Track]) -> Panel | None:
    """Return the panel that was asked for, its metrics on one axis or on several; None if none was."""
    wanted = query.text("panel")
    if not wanted:
        return None
    columns = columns_of(tracks)
    for panel in [*panels_of(columns, len(tracks)), *panels_of(columns, 1)]:
        if panel.id == wanted:
            return panel
    raise GalleryError(f"There is no panel {wanted!r} of these runs. Choose one on the page of the curves.", 404)


def _sections(
    site: Site, panels: Sequence[Panel], lines: Mapping[str, Sequence[Line]], keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Return panels below their headings; in each the folded ones below what they are folded under."""
    sections = []
    for title, members in groupby(panels, key=lambda panel: panel.section):
        folds: dict[str, list[dict[str, Any]]] = {}
        for panel in members:
            folds.setdefault(panel.fold, []).append(_shown(site, panel, lines[panel.id], keys))
        sections.append({"title": title, "panels": folds.pop("", []), "folds": folds})
    return sections


def _shown(site: Site, panel: Panel, lines: Sequence[Line], keys: Sequence[str]) -> dict[str, Any]:
    summaries = [summary_of(panel, line) for line in lines]
    return {
        "panel": panel,
        "summaries": summaries,
        "csv": None if site.links.exported else site.links.page("curves.csv", run=keys, panel=panel.id),
    }


def _filename(runs: Sequence[RunSource], panel: str) -> str:
    parts = ["curves", runs[0].key if len(runs) == 1 else f"{len(runs)}-runs", panel]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(part for part in parts if part)) + ".csv"
