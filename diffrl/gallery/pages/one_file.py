"""A comparison or a tree as one file to send: styles, scripts and images are inside, and nothing leads out of it."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.export import Hidden
from diffrl.gallery.links import Value
from diffrl.gallery.pages.compare import compare
from diffrl.gallery.pages.trees import tree
from diffrl.gallery.paths import is_video
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.report import STATIC
from diffrl.gallery.report_parts import as_uri, data_uri
from diffrl.gallery.site import Page, Site
from diffrl.gallery.thumbnails import MISSING

ROWS = 48
"""Of a comparison: the first ones in the order that was asked for."""
LARGEST = 1024
"""Longest edge of an enlarged image, in pixels."""


class FileLinks:
    """Addresses on a page that is one file.

    Args:
        site: whose images they are.
    """

    exported = True

    def __init__(self, site: Site):
        self._site, self._kept = site, dict[tuple[str, str, int, bool], str]()

    def page(self, name: str, **parameters: Value) -> str:
        """Return "", since no other page comes along."""
        return ""

    def media(self, source: str, file: str, size: int | None = None, still: bool = False) -> str:
        """Return a data: URI of an image, or of a sign that it is missing; "" of a video, which does not come along."""
        if is_video(file):
            return ""
        wanted = (source, file, size or LARGEST, still)
        if wanted not in self._kept:
            try:
                self._kept[wanted] = data_uri(Path(self._site.source(source).media(file)), wanted[2], still)
            except (GalleryError, OSError):
                self._kept[wanted] = as_uri("image/svg+xml", MISSING.encode())
        return self._kept[wanted]

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
