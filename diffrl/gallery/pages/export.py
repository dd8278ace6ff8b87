"""An export asked for from a page: made behind the pages, told page by page, kept as a zip file."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from diffrl.errors import DiffrlError
from diffrl.gallery.answers import note
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.forms import form_of
from diffrl.gallery.records import Source
from diffrl.gallery.site import Site

Make = Callable[[Sequence[Source], Path, Callable[[int, int], None]], list[str]]
"""Writes sources as a site to a folder, tells how far it is, and gives lines for the user; see `export.export_site`."""


@dataclass(frozen=True)
class Far:
    """How far an export is.

    Args:
        running: whether it is being made.
        done: pages that are written.
        left: pages that are known and not written yet.
        file: the zip file; None before it is there.
        lines: what the export says of itself in the end.
        problem: why there is none; "" if nothing went wrong.
    """

    running: bool = False
    done: int = 0
    left: int = 0
    file: Path | None = None
    lines: Sequence[str] = ()
    problem: str = ""


class Exports:
    """One export at a time; the last one is kept until the server ends.

    Args:
        make: writes a site.
    """

    def __init__(self, make: Make):
        self.key = secrets.token_urlsafe(24)
        self.far = Far()
        self._make, self._lock = make, threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def begin(self, sources: Sequence[Source]) -> None:
        """Start an export of these; nothing if one is being made already."""
        with self._lock:
            if self.far.running:
                return
            if self._folder is not None:
                self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix="diffrl-export-", ignore_cleanup_errors=True)
            self.far = Far(running=True)
            threading.Thread(target=self._run, args=(list(sources), Path(self._folder.name)), daemon=True).start()

    def _run(self, sources: Sequence[Source], folder: Path) -> None:
        def far(done: int, left: int) -> None:
            self.far = Far(running=True, done=done, left=left)

        name = f"gallery-{datetime.now():%Y-%m-%d-%H%M%S}"
        try:
            lines = self._make(sources, folder / name, far)
            file = Path(shutil.make_archive(str(folder / name), "zip", folder, name))
            shutil.rmtree(folder / name)
            counted = lines[0].rpartition(" in ")[0]  # where it lay until it was packed is of no use
            self.far = Far(file=file, lines=[f"{counted}.", *lines[1:-1]])
        except (DiffrlError, OSError) as error:
            self.far = Far(problem=str(error))
        except Exception as error:  # a mistake of ours is noted, and the page must not wait for ever
            note(error)
            self.far = Far(problem=f"The export failed: {type(error).__name__}. The terminal has its traceback.")


def add_routes(app: FastAPI, site: Site) -> None:
    """Add the page that asks for an export and shows how far it is, and the file."""

    def make(sources: Sequence[Source], folder: Path, far: Callable[[int, int], None]) -> list[str]:
        from diffrl.gallery.export import export_site  # numpy comes with it: only whoever exports waits for that

        return export_site(sources, folder, site.options, far)

    exports = Exports(make)

    def show(request: Request) -> Response:
        run = request.query_params.get("run", "")
        source = site.source(run) if run else None
        body = site.render("export.html", far=exports.far, key=exports.key, source=source)
        return Response(body, media_type="text/html; charset=utf-8")

    async def take(request: Request) -> Response:
        fields = await form_of(request)
        if not secrets.compare_digest(fields.get("key", "").encode(), exports.key.encode()):
            raise GalleryError("An export needs the key of its page. Got another. Reload the page.", 403)
        run = fields.get("run", "")
        sources = await run_in_threadpool(lambda: [site.source(run)] if run else list(site.sources))
        if not sources:
            raise GalleryError("There is nothing to export yet. Train a run first.", 409)
        exports.begin(sources)
        return RedirectResponse(site.links.page("export", run=run), 303)

    def download(name: str) -> Response:
        file = exports.far.file
        if file is None or file.name != name:
            raise GalleryError("There is no such export any more. Export anew.", 404)
        return FileResponse(file, media_type="application/zip", filename=file.name)

    app.add_api_route("/export", show, methods=["GET"], response_model=None)
    app.add_api_route("/export", take, methods=["POST"], response_model=None)
    app.add_api_route("/export/{name}", download, methods=["GET"], response_model=None)
