"""A comparison or a tree as one file to send: styles, scripts and images are inside, and nothing leads out of it."""

from __future__ import annotations

import mimetypes
from functools import cache

from diffrl.gallery.export import Hidden
from diffrl.gallery.pages.compare import compare
from diffrl.gallery.pages.trees import tree
from diffrl.gallery.paths import is_video
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.report import STATIC
from diffrl.gallery.report_parts import InlineLinks, as_uri
from diffrl.gallery.site import Page, Site

ROWS = 48
"""Of a comparison: the first ones in the order that was asked for."""
LARGEST = 1024
"""Longest edge of an enlarged image, in pixels."""


class FileLinks(InlineLinks):
    """Addresses on a page that is one file, in which images can be enlarged."""

    def __init__(self, site: Site):
        super().__init__(site.source)
        self._inside = cache(super().media)

    def media(self, source: str, file: str, size: int | None = None, still: bool = False) -> str:
        """Return a data: URI of an image, or of a sign that it is missing; "" of a video, which does not come along."""
        return "" if is_video(file) else self._inside(source, file, size or LARGEST, still)

    def static(self, name: str) -> str:
        """Return a data: URI of a file of the gallery's own."""
        return as_uri(mimetypes.guess_type(name)[0] or "text/plain", (STATIC / name).read_bytes())


def compare_file(site: Site, query: Query) -> Answer:
    """Return the first rows of a comparison; their order and filters are those of the address."""
    return _alone(compare, site, query, "comparison.html")


def tree_file(site: Site, query: Query) -> Answer:
    """Return one prompt's rollout as a tree."""
    return _alone(tree, site, query, "tree.html")


def _alone(page: Page, site: Site, query: Query, filename: str) -> Answer:
    sources = site.sources
    answer = page(Site(sources, FileLinks(site), {**site.options, "rows": ROWS}), query)
    return Answer(Hidden(sources).places(str(answer.body)), status=answer.status, filename=filename)
