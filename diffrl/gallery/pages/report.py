"""A run's report: its page in one file, made afresh from what the run has written so far."""

from __future__ import annotations

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.progress import progress
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.report import report_document
from diffrl.gallery.runs import RunSource, mark
from diffrl.gallery.site import Site

OTHERS = ("config.yaml", "environment.json", "precision.json", "rewards.json")
"""Files of a run that its version leaves out, since training does not change them."""


def report(site: Site, query: Query) -> Answer:
    """Return the file that a run leaves at its end, to be seen; with download=1 to be kept."""
    run = site.run(query.text("run"))
    return Answer(document_of(site, run), filename=f"report-{run.key}.html" if query.text("download") else None)


def document_of(site: Site, run: RunSource) -> str:
    """Return a report, made once for what the run has written: its curves take matplotlib a second and more."""
    try:
        state = progress(run).state  # which changes by the time that passes alone
    except GalleryError:
        state = ""
    files = [mark(run.path / name) for name in ("metrics.jsonl", *OTHERS)]
    key = (run.key, run.title, str(run.path), run.version(), state, *files)
    return site.reports.get(key, lambda: report_document(run)) or ""
