"""report.html: a run on one page, in one file that needs nothing else, made from the run's files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffrl import __version__
from diffrl.files import write_text
from diffrl.gallery.costs import costs_of
from diffrl.gallery.curves import columns_of, lines_of
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.numbers import finite, three
from diffrl.gallery.overview import before_and_after, flat, intervals, lead, led_out, missing, mixed, read_json, text
from diffrl.gallery.panels import FIDELITY, panels_of
from diffrl.gallery.progress import Progress, log_messages, progress, updates_once
from diffrl.gallery.report_parts import PAIRS, figures, pairs, tree_part
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import Track, track_of
from diffrl.gallery.site import Site

REPORT = "report.html"
STATIC = Path(__file__).parent / "static"
STYLES = ("gallery.css", "series.css", "report.css", "tree_figure.css")
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
    write_text(path, report_document(Site([run], ServerLinks(__version__)), run), errors="replace")
    return path


def report_document(site: Site, run: RunSource, values: Mapping[str, Any] | None = None) -> str:
    """Return the report as a whole HTML document without any reference to something outside of it.

    Args:
        site: renders it.
        run: whose it is.
        values: of `report_values`; None makes them.
    """
    values = report_values(run) if values is None else values
    styles = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES)
    return site.render("report.html", css=Markup(styles), **values)  # the gallery's own files


def report_values(run: RunSource) -> dict[str, Any]:
    """Everything that the report's templates show. What cannot be read is a sentence among `problems`."""
    problems: list[str] = []
    summary = read_json(run, "summary.json", problems)
    environment = read_json(run, "environment.json", problems)
    precision = read_json(run, "precision.json", problems)
    track = track_of(run)
    problems += [track.problem] if track.problem else []
    course = _course(run, problems)
    changes = course.headline if course else []
    alarms, notes = log_messages(run)
    curves, constant = figures(track, updates_once(run))
    first_pairs = before_and_after(run, PAIRS)
    problems += [*led_out(run), *mixed(run), *missing(course, first_pairs)]
    shown, words = pairs(run, first_pairs, [change.name for change in changes])
    known = intervals(run, first_pairs, course)
    return {
        "run": run,
        "status": status(course, summary),
        "lead": lead(changes, course, known),
        "changes": changes,
        "problems": problems,
        "pairs": shown,
        "pairs_words": words,
        "intervals": known,
        "figures": curves,
        "first_figures": FIRST_FIGURES,
        "constant": constant,
        "tree": tree_part(run),
        "fidelity": fidelity(track),
        "precision": precision_lines(precision),
        "costs": costs_of(summary, track),
        "alarms": alarms,
        "sentinel": sentinel(track),
        "notes": notes,
        "config": run.read_text("config.yaml"),
        "environment": flat({name: value for name, value in environment.items() if name != "resumed"}),
        "resumed": resumptions(environment),
    }


def status(course: Progress | None, summary: Mapping[str, Any]) -> str:
    """Return how far the run is, in a sentence."""
    done = course.done if course else 0
    of = f" of {course.total:,}" if course and course.total else ""
    if summary:
        return f"Finished: {done:,}{of} iterations."
    if course and course.ended:
        return f"{course.ended[0].upper()}{course.ended[1:]} after {done:,}{of} iterations."
    return f"Not finished: {done:,}{of} iterations so far."


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


def sentinel(track: Track) -> list[tuple[int, int]]:
    """Return iteration and number of alarms of the evaluations at which the sentinel saw something."""
    seen = zip(track.along("iteration"), track.along("sentinel/alarms"), strict=True)
    return [(int(iteration), int(alarms)) for iteration, alarms in seen if iteration is not None and alarms]


def resumptions(environment: Mapping[str, Any]) -> list[str]:
    """Return a sentence a resumption: what differs from the run's start."""
    entries = environment.get("resumed")
    began = dict(flat({name: value for name, value in environment.items() if name not in ("resumed", "run_id")}))
    sentences = []
    for n, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
        entry = entry if isinstance(entry, dict) else {}
        now = dict(flat({k: v for k, v in entry.items() if k not in ("run_id", "changed")}))
        other = [f"{name} {value} (began with {began.get(name, 'none')})" for name, value in now.items()
                 if began.get(name) != value]  # fmt: skip
        changed = entry["changed"] if isinstance(entry.get("changed"), dict) else {}
        other += [f"{key} {text(values.get('is'))} (was {text(values.get('was'))})" for key, values in changed.items()
                  if isinstance(values, dict)]  # fmt: skip
        sentences.append(f"Resumption {n}: {', '.join(other) if other else 'on the same machine and versions'}.")
    return sentences


def _course(run: RunSource, problems: list[str]) -> Progress | None:
    try:
        course = progress(run)
    except GalleryError as error:
        problems.append(str(error))
        return None
    return course
