"""The server: pages, images, the gallery's own files. It reads; votes and exports are written, by their own pages."""

from __future__ import annotations

import contextlib
import ipaddress
import mimetypes
import os
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from diffrl.gallery.answers import answered, as_bytes, error_page
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.paths import is_video
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.site import Site
from diffrl.gallery.thumbnails import MISSING, SIZES, sign

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
PATIENCE = 20
"""Seconds for which a connection may rest, and for which a client may hold one up."""
ASK_AGAIN = "private, no-cache"
"""A resumed run writes other images under the same names: browsers keep them, and ask whether they still hold."""


def make_app(site: Site, host: str = "127.0.0.1") -> FastAPI:
    """Return the application.

    Args:
        site: what is shown.
        host: where it listens; only requests to names and addresses of its machine are answered (`hosts`).
    """
    app = FastAPI(title="diffrl gallery", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.middleware("http")
    async def safe_headers(request: Request, call_next):  # type: ignore[no-untyped-def]
        try:
            name = request.headers.get("host", "")
            if answers_to(name, host) or (host not in LOOPBACK and await run_in_threadpool(is_full_name, name)):
                response = await call_next(request)
            else:
                response = Response(REFUSED.format(host=name[:100]), 400, media_type="text/plain")
        except ClientDisconnect:
            response = Response(status_code=499)  # nobody reads it
        except Exception as error:  # of a route or a page, it is told and noted, and the server goes on
            response = respond(error_page(site, error))
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.exception_handler(GalleryError)
    def refused(request: Request, error: GalleryError) -> Response:
        return respond(site.message(error))

    @app.exception_handler(RequestValidationError)
    def misunderstood(request: Request, error: RequestValidationError) -> Response:
        where = ", ".join(".".join(map(str, entry["loc"])) for entry in error.errors())
        return respond(site.message(GalleryError(f"The gallery does not understand {where} of this request.", 400)))

    @app.exception_handler(404)
    def unknown(request: Request, error: HTTPException) -> Response:
        return respond(site.message(GalleryError(f"There is no page {request.url.path!r} in this gallery.", 404)))

    @app.get("/media/{key}/{file:path}")
    def media(request: Request, key: str, file: str, size: int | None = None, still: bool = False) -> Response:
        return send_image(site, key, file, size, still, request.headers.get("if-none-match", ""))

    from diffrl.gallery.pages import vote

    vote.add_routes(app, site)

    @app.get("/")
    @app.get("/{name}")
    def page(request: Request, name: str = "home") -> Response:
        parameters = request.query_params
        return respond(answered(site, name, Query({key: parameters.getlist(key) for key in parameters})))

    return app


def respond(answer: Answer) -> Response:
    """Return a page function's answer as HTTP."""
    headers = {"Content-Disposition": f'attachment; filename="{answer.filename}"'} if answer.filename else {}
    return Response(as_bytes(answer), answer.status, headers, media_type=answer.type)


def send_image(site: Site, key: str, file: str, size: int | None, still: bool, held: str = "") -> Response:
    """Return an image, small or whole; what is missing is answered by an image that says so.

    Args:
        site: whose it is.
        key: of the source.
        file: relative to the source.
        size: of a thumbnail; None is the whole image.
        still: the first frame of what moves.
        held: If-None-Match: what the browser has; if it still holds, the answer is 304 without an image.
    """
    try:
        if size is not None and size not in SIZES:
            raise GalleryError(f"size must be one of {SIZES}. Got {size}.", 400)
        path = Path(site.source(key).media(file))
        stat = path.stat()  # before the image is read: of one that changes meanwhile the mark is old, never new
        mark = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}-{size or 0}-{int(still)}"'
        headers = {"Cache-Control": ASK_AGAIN, "ETag": mark}
        if mark in re.findall(r'"[^"]*"', held):
            return Response(status_code=304, headers=headers)
        small = site.thumbnails.get(path, size, still) if size is not None or still else None
    except (GalleryError, OSError) as error:
        status = error.status if isinstance(error, GalleryError) else 404
        return Response(sign("too large", str(error)) if status == 413 else MISSING, status, media_type="image/svg+xml")
    if small is not None:
        return Response(small, media_type="image/webp", headers=headers)
    kind = mimetypes.guess_type(path.name)[0] or ("video/mp4" if is_video(path) else "image/webp")
    return FileResponse(path, media_type=kind, headers=headers, stat_result=stat)


def serve(site: Site, host: str, port: int, ready: Callable[[], None]) -> None:
    """Answer until Ctrl-C, behind whatever else the machine does: training comes first.

    `ready` is called once requests are answered.
    """
    os.nice(5)
    import numpy as np  # noqa: F401 - like special, what intervals are computed with: nearly every first page has some
    import uvicorn
    from scipy import special  # noqa: F401

    from reward_models.serving.connections import server_config

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    options = {"log_level": "warning", "timeout_keep_alive": PATIENCE, "timeout_graceful_shutdown": 1}
    with contextlib.suppress(KeyboardInterrupt):  # raised again once everything has been closed
        Server(server_config(make_app(site, host), host=host, port=port, **options)).run()


LOOPBACK = ("127.0.0.1", "localhost", "::1")
REFUSED = (
    "The gallery answers to the names and addresses of its own machine, so that no web page elsewhere can read it. "
    "Got {host!r}. Open it by the machine's address."
)


def answers_to(header: str, host: str) -> bool:
    """Return whether a request is for this server by a name that is known without asking; see also `is_full_name`.

    Args:
        header: the request's Host, with or without a port.
        host: where the server listens; on a loopback address only loopback names are its own.
    """
    name = name_in(header)
    if not name or name in LOOPBACK or host in LOOPBACK:
        return name in LOOPBACK
    try:
        ipaddress.ip_address(name)
        return True  # rebinding needs a name; nobody can point an address elsewhere
    except ValueError:
        machine = socket.gethostname().lower()
        return name in (host.lower(), machine, f"{machine}.local")


def is_full_name(header: str) -> bool:
    """Return whether a request calls the machine by its full name; the first call may wait for a name server."""
    return name_in(header) == full_name()


def name_in(header: str) -> str:
    """Return the name or address in a Host header, without port and brackets; "" if there is none."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", header)
    return match[1].strip("[]").lower().rstrip(".") if match else ""


@lru_cache(maxsize=1)
def full_name() -> str:
    """Return the machine's full name, which a name server may be asked for."""
    return socket.getfqdn().lower().rstrip(".")
