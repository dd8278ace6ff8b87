"""Which two sets of images are voted on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diffrl.gallery.columns import MOST, Column, first_and_last, last_of_all, named
from diffrl.gallery.compare import Row, match, pictured, standing
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.query import Query
from diffrl.gallery.records import Brief
from diffrl.gallery.site import Site


def opponents(site: Site, query: Query) -> tuple[Column, Column]:
    """A and B: those of the address, else the usual ones of its run, or of the gallery.

    Raises:
        GalleryError: there are no two.
    """
    keys = [query.text("a"), query.text("b")]
    if not any(keys):
        return usual(site, query.text("run"))
    if not all(keys):
        raise GalleryError("A vote compares two states. Got one. Give both, a and b, or neither.")
    a, b = named([site.state(key) for key in keys])
    return a, b


def usual(site: Site, run: str = "") -> tuple[Column, Column]:
    """The first two sets that have images of one prompt; the first two, whatever they have, if no others do.

    Raises:
        GalleryError: there are no two.
    """
    first = None
    for pair in _candidates(site, run):
        first = first or pair
        try:
            if meetings(*pair).shown:
                return pair
        except GalleryError:  # a store that cannot be read; its own pages say so
            continue
    if first is None:
        raise GalleryError(
            "A vote compares two sets of images. There are not two of them here. Wait for the next evaluation, or "
            "show two folders."
        )
    return first


def _candidates(site: Site, run: str) -> Iterator[tuple[Column, Column]]:
    """First and last evaluation of the run, or of each; then the last of one source and of another."""
    if run:
        yield from _ends(first_and_last(site.source(run)).columns)
        return
    for source in site.runs:
        try:
            yield from _ends(first_and_last(source).columns)
        except GalleryError:
            continue
    last = last_of_all(site.sources, MOST).columns
    for place, b in enumerate(last):
        for a in last[:place]:
            yield a, b


def _ends(columns: Sequence[Column]) -> list[tuple[Column, Column]]:
    return [(columns[0], columns[-1])] if len(columns) > 1 else []


class Meetings(NamedTuple):
    """Samples of A and B beside each other.

    Args:
        briefs: of A and of B.
        rows: those that both have.
        shown: those of them that can be judged: both images were kept whatever they scored, with their own pixels, as
            far as the index says.
        by: what made two samples a pair, in words.
    """

    briefs: list[list[Brief]]
    rows: list[Row]
    shown: list[Row]
    by: str


def meetings(a: Column, b: Column) -> Meetings:
    """See `Meetings`.

    Raises:
        GalleryError: one of them cannot be read.
    """
    briefs = [column.source.briefs(column.state, None) for column in (a, b)]
    matched = match(briefs, [a.stream, b.stream])
    rows = [row for row in matched.rows if None not in row.ids]
    exact = [[brief._replace(pictured=brief.pictured and brief.exact is not False) for brief in own] for own in briefs]
    return Meetings(briefs, rows, standing(pictured(rows, exact), briefs), matched.by)
