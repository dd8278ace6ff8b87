"""The evaluations of a run's held-out samples, for the slider of the lightbox (static/evaluations.js)."""

from __future__ import annotations

import json

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.evaluations import followed
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.site import Site


def evaluations_json(site: Site, query: Query) -> Answer:
    """A block of prompts as JSON; see `evaluations.followed`."""
    return Answer(_written(site, query), "application/json")


def evaluations_js(site: Site, query: Query) -> Answer:
    """The same as a script, for a page that was opened from disk and cannot fetch.

    Raises:
        GalleryError: the gallery runs (404). Any page of the web may run a script of another address and keep what it
            says; what `fetch` brings it cannot read.
    """
    if not site.links.exported:
        raise GalleryError("Scripts with samples are in exported sites only. Ask for evaluations.json.", 404)
    return Answer(f"gallery.evaluations = {_written(site, query)};\n", "text/javascript")


def _written(site: Site, query: Query) -> str:
    found = followed(site, site.run(query.text("run")), query.whole("block", 0), query.text("state"))
    return json.dumps(found, separators=(",", ":"))
