"""The start: one run's overview, or a card for each of several sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.overview import before_and_after, missing
from diffrl.gallery.pages.compare import compare
from diffrl.gallery.pages.run import overview
from diffrl.gallery.progress import Progress, progress
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Source
from diffrl.gallery.rows import View
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site

STRIP = 4


@dataclass(frozen=True)
class Card:
    """A source on the start page.

    Args:
        source: which.
        course: of a run; None of a folder, or if it cannot be read.
        views: pairs before and after; of a folder, pictures.
        notes: sentences on what cannot be shown.
        written: seconds since 1970 of its last change.
    """

    source: Source
    course: Progress | None = None
    views: Sequence[View] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)
    written: float = 0.0


def home(site: Site, query: Query) -> Answer:
    """The page."""
    if len(site.sources) == 1:
        source = site.sources[0]
        return overview(site, source) if isinstance(source, RunSource) else compare(site, Query())
    if not site.runs:  # folders were given to be compared
        return compare(site, query)
    cards = sorted((card(source) for source in site.sources), key=lambda card: -card.written)
    return Answer(site.render("home.html", cards=cards))


def card(source: Source) -> Card:
    """A source's card; what is wrong with it stands on it and nowhere else."""
    try:
        course = progress(source) if isinstance(source, RunSource) else None
        pairs = before_and_after(source, STRIP)
        notes = [*pairs.notes, *missing(course, pairs)]
        return Card(source, course, pairs.views, notes, course.written if course else 0.0)
    except (GalleryError, OSError) as error:
        return Card(source, notes=[str(error)])
