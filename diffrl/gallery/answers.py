"""A page, whatever happens: what cannot be shown is told on a page, and a mistake of ours is noted once."""

from __future__ import annotations

import logging
import threading
import traceback

from diffrl.errors import DiffrlError
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.site import Site

log = logging.getLogger("diffrl.gallery")
_noted: set[str] = set()
_lock = threading.Lock()


def answered(site: Site, name: str, query: Query) -> Answer:
    """Return the page, or one that says why there is none."""
    try:
        return site.answer(name, query)
    except Exception as error:  # whatever a page meets, the visitor gets a sentence
        return error_page(site, error)


def error_page(site: Site, error: Exception) -> Answer:
    """Return a page about an error: its own sentence, else a request to report it, which is logged once."""
    if isinstance(error, GalleryError):
        return site.message(error)
    if isinstance(error, DiffrlError):
        return site.message(GalleryError(str(error), 503))
    if isinstance(error, (FileNotFoundError, PermissionError)) and error.filename is not None:
        return site.message(GalleryError(f"{error.filename} cannot be read: {error.strerror}. Is the run there?", 503))
    note(error)
    sentence = (
        f"The gallery made a mistake: {type(error).__name__}. Please report it, with the traceback that stands in the "
        "terminal where the gallery runs."
    )
    return site.message(GalleryError(sentence, 500))


def note(error: Exception) -> None:
    """Log a mistake of ours with its traceback, the first time only: a page that is polled would fill the terminal."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else repr(error)
    with _lock:
        if where in _noted:
            return
        _noted.add(where)
    log.error("A page of the gallery failed: %s", where, exc_info=error)


def as_bytes(answer: Answer) -> bytes:
    """Return the body as it is sent or written; half a surrogate pair becomes a question mark."""
    return answer.body if isinstance(answer.body, bytes) else answer.body.encode("utf-8", "replace")
