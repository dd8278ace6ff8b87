"""The start: one run's overview, or a card for each of several sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import three
from diffrl.gallery.overview import before_and_after, intervals, missing, mixed
from diffrl.gallery.pages.compare import compare
from diffrl.gallery.pages.curves import measured_alike
from diffrl.gallery.pages.run import overview
from diffrl.gallery.progress import Progress, progress
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Source, describe_reward
from diffrl.gallery.rows import View
from diffrl.gallery.runs import RunSource
from diffrl.gallery.score_table import seeds_of
from diffrl.gallery.site import Site
from diffrl.statistics import Estimate

STRIP = 4


@dataclass(frozen=True)
class Card:
    """A source on the start page.

    Args:
        source: which.
        course: of a run; None of a folder, or if it cannot be read.
        views: pairs before and after; of a folder, images.
        intervals: of the held-out changes, by reward; those that hold 0 are shown grey, and so are those without one.
        notes: sentences on what cannot be shown.
        written: seconds since 1970 of its last change.
    """

    source: Source
    course: Progress | None = None
    views: Sequence[View] = field(default_factory=list)
    intervals: Mapping[str, Estimate] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=list)
    written: float = 0.0


def home(site: Site, query: Query) -> Answer:
    """Return the page."""
    if len(site.sources) == 1:
        source = site.sources[0]
        return overview(site, source) if isinstance(source, RunSource) else compare(site, Query())
    if site.sources and not site.runs:  # folders were given to be compared
        return compare(site, query)
    cards = sorted((card(source) for source in site.sources), key=lambda card: -card.written)
    return Answer(site.render("home.html", cards=cards, headline=headline(cards)))


def headline(cards: Sequence[Card]) -> str:
    """Return which run's last evaluation is best by the first held-out reward, where all are measured alike."""
    runs = [card for card in cards if card.course and card.course.headline and isinstance(card.source, RunSource)]
    firsts = [card.course.headline[0] for card in runs if card.course]
    known = [one.after for one in firsts if one.after is not None]
    if len(runs) < 2 or len(known) < len(runs) or len({(one.name, one.lower) for one in firsts}) > 1:
        return ""
    if not measured_alike([card.source for card in runs if isinstance(card.source, RunSource)]):
        return ""
    best = min(known) if firsts[0].lower else max(known)
    if known.count(best) > 1:
        return ""
    name, title = describe_reward(firsts[0].name, firsts[0].lower), runs[known.index(best)].source.title
    seeds = seeds_of([card.source for card in runs])
    of = f" of {seeds}" if seeds else ""
    return f"{'Lowest' if firsts[0].lower else 'Highest'} held-out {name}{of}: {title}, {three(best)}"


def card(source: Source) -> Card:
    """Return a source's card; what is wrong with it stands on it and nowhere else."""
    try:
        course = progress(source) if isinstance(source, RunSource) else None
        pairs = before_and_after(source, STRIP)
        notes = [*pairs.notes, *missing(course, pairs), *(mixed(source) if isinstance(source, RunSource) else [])]
        known = intervals(source, pairs, course) if isinstance(source, RunSource) else {}
        return Card(source, course, pairs.views, known, notes, course.written if course else 0.0)
    except (GalleryError, OSError) as error:
        return Card(source, notes=[str(error)])
