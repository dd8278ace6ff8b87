"""A run's report, made afresh from what the run has written so far."""

from __future__ import annotations

from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.report import report_document, report_values
from diffrl.gallery.site import Site


def report(site: Site, query: Query) -> Answer:
    """The report as a page of the gallery; with download=1 as the one file that a run leaves at its end."""
    run = site.run(query.text("run"))
    if query.text("download"):
        return Answer(report_document(site, run), filename=f"report-{run.key}.html")
    values = report_values(run)
    return Answer(
        site.render("report_page.html", download=site.links.page("report", run=run.key, download="1"), **values)
    )
