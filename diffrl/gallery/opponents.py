"""Which two sets of images are voted on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diffrl.gallery.columns import Column, first_and_last, last_of_all, named
from diffrl.gallery.compare import FOLDER, Row, match, pictured, standing
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
    known: dict[str, list[Brief]] = {}
    for pair in _candidates(site, run):
        first = first or pair
        try:
            for one in pair:
                if one.key not in known:
                    known[one.key] = _briefs(one)
            briefs = [known[one.key] for one in pair]
            if _may_meet(pair, briefs) and _meet(*pair, briefs).shown:
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
    last = last_of_all(site.sources).columns
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
    return _meet(a, b, [_briefs(a), _briefs(b)])


def _briefs(column: Column) -> list[Brief]:
    return column.source.briefs(column.state, None)


def _may_meet(pair: Sequence[Column], briefs: Sequence[Sequence[Brief]]) -> bool:
    """Whether two have a prompt in common, without which samples of runs are no pairs: quick, for many runs."""
    prompts = ({brief.key[0] for brief in own} for own in briefs)
    return FOLDER in [column.stream for column in pair] or bool(set.intersection(*prompts))


def _meet(a: Column, b: Column, briefs: list[list[Brief]]) -> Meetings:
    matched = match(briefs, [a.stream, b.stream])
    rows = [row for row in matched.rows if None not in row.ids]
    exact = [[brief._replace(pictured=brief.pictured and brief.exact is not False) for brief in own] for own in briefs]
    return Meetings(briefs, rows, standing(pictured(rows, exact), briefs), matched.by)
