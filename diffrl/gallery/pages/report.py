"""A run's report, made afresh from what the run has written so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.progress import progress
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.report import report_document, report_values
from diffrl.gallery.runs import RunSource, mark
from diffrl.gallery.site import Site

OTHERS = ("config.yaml", "environment.json", "precision.json", "rewards.json")
"""Files of a run that its version leaves out, since training does not change them."""


def report(site: Site, query: Query) -> Answer:
    """Return the report as a page of the gallery; with download=1 as the one file that a run leaves at its end."""
    run = site.run(query.text("run"))
    if query.text("download"):
        return Answer(report_document(site, run, values_of(site, run)), filename=f"report-{run.key}.html")
    values = values_of(site, run)
    return Answer(
        site.render("report_page.html", download=site.links.page("report", run=run.key, download="1"), **values)
    )


def values_of(site: Site, run: RunSource) -> Mapping[str, Any]:
    """Return what the report shows, made once for what the run has written: its curves take a second and more."""
    try:
        state = progress(run).state  # which changes by the time that passes alone
    except GalleryError:
        state = ""
    files = [mark(run.path / name) for name in ("metrics.jsonl", *OTHERS)]
    key = (run.key, run.title, str(run.path), run.version(), state, *files)
    return site.reports.get(key, lambda: report_values(run)) or {}
