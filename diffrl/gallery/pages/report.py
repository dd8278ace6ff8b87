"""A run's report, made afresh from what the run has written so far."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from diffrl.gallery.progress import is_locked
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.report import report_document, report_values
from diffrl.gallery.runs import RunSource, changed
from diffrl.gallery.site import Site

OTHERS = ("config.yaml", "environment.json", "precision.json", "rewards.json")
"""Files of a run that its version leaves out, since training does not change them."""
KEPT = 8
"""Finished runs whose reports stay in memory, a few MB each."""
_MADE: OrderedDict[tuple[str, ...], Mapping[str, Any]] = OrderedDict()
_LOCK = threading.Lock()


def report(site: Site, query: Query) -> Answer:
    """The report as a page of the gallery; with download=1 as the one file that a run leaves at its end."""
    run = site.run(query.text("run"))
    if query.text("download"):
        return Answer(report_document(site, run, values_of(run)), filename=f"report-{run.key}.html")
    values = values_of(run)
    return Answer(
        site.render("report_page.html", download=site.links.page("report", run=run.key, download="1"), **values)
    )


def values_of(run: RunSource) -> Mapping[str, Any]:
    """What the report shows; of a finished run made once, since its curves take matplotlib a second and more."""
    if not (run.path / "summary.json").is_file() or is_locked(run.path / ".lock"):
        return report_values(run)
    others = (f"{changed(run.path / name):x}" for name in OTHERS)
    key = (run.key, run.title, str(run.path), run.version(), *others)
    with _LOCK:
        if key in _MADE:
            _MADE.move_to_end(key)
            return _MADE[key]
    values = report_values(run)
    with _LOCK:
        _MADE[key] = values
        while len(_MADE) > KEPT:
            _MADE.popitem(last=False)
    return values
