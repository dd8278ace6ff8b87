"""What has changed since a page was drawn: asked for every few seconds by static/live.js."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import Any

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.progress import Progress, progress, state_now
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Source
from diffrl.gallery.runs import RunSource, changed
from diffrl.gallery.site import Site
from diffrl.trees.record import TREES


def state(site: Site, query: Query) -> Answer:
    """Return a JSON object with one entry a source, or with that of the one that `run` names.

    Every entry has `title`, `kind`, and `version`, which changes whenever anything of the source does. A run's also has
    `age`, seconds since its last change, `done` and `total` iterations, `running`, and `evaluation`, the iteration of
    its last evaluation; each is null where it is not known. `trees` changes whenever a tree is added.
    """
    key = query.text("run")
    sources = [site.source(key)] if key else site.sources
    return Answer(json.dumps({source.key: _entry(source) for source in sources}), "application/json")


def _entry(source: Source) -> dict[str, Any]:
    version = source.version()
    entry: dict[str, Any] = {"title": source.title, "kind": source.kind, "version": version}
    if not isinstance(source, RunSource):
        return entry
    entry["trees"] = str(changed(source.path / TREES))  # nanoseconds, more than a number of JavaScript holds
    state = _progress(source, version)
    if state is None:
        return {**entry, "age": None, "done": None, "total": None, "running": None, "evaluation": None}
    return {
        **entry,
        "age": max(0.0, time.time() - state.written) if state.written else None,
        "done": state.done,
        "total": state.total,
        "running": state_now(source, state.written, state.ended) == "running",
        "evaluation": state.evaluations[-1][0] if state.evaluations else None,
    }


@lru_cache(maxsize=1024)
def _progress(source: RunSource, version: str) -> Progress | None:
    """Return how far a run is, read again when its version changes; None if it cannot be read."""
    try:
        return progress(source)
    except GalleryError:
        return None
