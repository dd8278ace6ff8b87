"""report.html: a run's page in one file that needs nothing else, made from the run's files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffrl.files import write_text
from diffrl.gallery.curves import columns_of, lines_of
from diffrl.gallery.numbers import finite, three
from diffrl.gallery.overview import read_json, text
from diffrl.gallery.pages.run import run_values
from diffrl.gallery.panels import FIDELITY, panels_of
from diffrl.gallery.progress import Progress, updates_once
from diffrl.gallery.report_parts import InlineLinks, figures, tree_part
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import Track, track_of
from diffrl.gallery.site import Site

REPORT = "report.html"
STATIC = Path(__file__).parent / "static"
STYLES = ("gallery.css", "series.css", "compare.css", "run.css", "tree_figure.css")
FIRST_FIGURES = 4
"""Curves that show at once; held-out rewards come first."""
PRECISION = ("precision", "engine", "compute_dtype", "outside_dtype", "scaling", "speed_up")


def write_report(run_dir: Path, destination: Path | None = None) -> Path:
    """Write a run's report, of a run at any point of its course.

    Args:
        run_dir: the run.
        destination: the file; report.html in the run without one. What was there is replaced in one step.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(destination) if destination else Path(run_dir) / REPORT
    run = RunSource("run", Path(run_dir), Path(run_dir).resolve().name)
    write_text(path, report_document(run), errors="replace")
    return path


def report_document(run: RunSource) -> str:
    """Return the report as a whole HTML document without any reference to something outside of it."""
    site = Site([run], InlineLinks(lambda key: run))
    values = run_values(site, run)
    course, track = values["course"], track_of(run)
    curves, constant = figures(track, updates_once(run))
    values["course"] = course and at_rest(course, run)
    values["report"] = {
        "figures": curves,
        "first_figures": FIRST_FIGURES,
        "constant": constant,
        "problem": track.problem,
        "tree": tree_part(run),
        "fidelity": fidelity(track),
        "precision": precision_lines(read_json(run, "precision.json", values["notes"])),
    }
    styles = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES)
    return site.render("report.html", css=Markup(styles), **values)  # the gallery's own files


def at_rest(course: Progress, run: RunSource) -> Progress:
    """Return a course as a file tells it: the run that writes its report still runs, whoever reads it comes later."""
    if (run.path / "summary.json").is_file():
        return replace(course, state="finished", ended="")
    return replace(course, state="not finished") if course.state == "running" else course


def fidelity(track: Track) -> list[tuple[str, list[str]]]:
    """Return metrics of the exploring stage: name; first, last and mean value, lowest and highest."""
    rows = []
    for panel in panels_of(columns_of([track])):
        if panel.section != FIDELITY:
            continue
        for line in lines_of(panel, [track]):
            values = [value for _, value in line.points if value == value]
            numbers = (values[0], values[-1], sum(values) / len(values), min(values), max(values))
            rows.append((line.label, [three(value) for value in numbers]))
    return rows


def precision_lines(precision: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what precision.json says in short."""
    lines = [(name.replace("_", " "), text(precision[name])) for name in PRECISION if precision.get(name) is not None]
    for name in ("parameters_quantised", "flops_quantised"):
        if (share := finite(precision.get(name))) is not None:
            lines.append((name.replace("_", " "), f"{share:.1%}"))
    notes = precision.get("notes")
    return lines + [("note", text(note)) for note in (notes if isinstance(notes, list) else [])]
