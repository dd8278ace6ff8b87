"""The server: pages, pictures, the gallery's own files. It reads; only votes are written, by their own page."""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from diffrl.gallery.answers import answered, as_bytes, told
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.site import Site
from diffrl.gallery.thumbnails import MISSING, SIZES

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
KEPT = "private, max-age=3600"


def make_app(site: Site, host: str = "127.0.0.1") -> FastAPI:
    """The application.

    Args:
        site: what is shown.
        host: where it listens; on a loopback address only requests to a loopback name are answered, so that no web
            page elsewhere can read the gallery by a name that it points here.
    """
    app = FastAPI(title="diffrl gallery", docs_url=None, redoc_url=None, openapi_url=None)
    if host in LOOPBACK:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.middleware("http")
    async def safe_headers(request: Request, call_next):  # type: ignore[no-untyped-def]
        try:
            response = await call_next(request)
        except Exception as error:  # of a route or a page, it is told and noted, and the server goes on
            response = respond(told(site, error))
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
    def media(key: str, file: str, size: int | None = None, still: bool = False) -> Response:
        return picture(site, key, file, size, still)

    from diffrl.gallery.pages.vote import add_routes

    add_routes(app, site)

    @app.get("/")
    @app.get("/{name}")
    def page(request: Request, name: str = "home") -> Response:
        parameters = request.query_params
        return respond(answered(site, name, Query({key: parameters.getlist(key) for key in parameters})))

    return app


def respond(answer: Answer) -> Response:
    """A page function's answer as HTTP."""
    headers = {"Content-Disposition": f'attachment; filename="{answer.filename}"'} if answer.filename else None
    return Response(as_bytes(answer), answer.status, headers, media_type=answer.type)


def picture(site: Site, key: str, file: str, size: int | None, still: bool) -> Response:
    """A picture, small or whole; what is missing is answered by a picture that says so."""
    try:
        if size is not None and size not in SIZES:
            raise GalleryError(f"size must be one of {SIZES}. Got {size}.", 400)
        path = Path(site.source(key).media(file))
        small = site.thumbnails.get(path, size, still) if size is not None or still else None
        stat = path.stat()
    except (GalleryError, OSError) as error:
        status = error.status if isinstance(error, GalleryError) else 404
        return Response(MISSING, status, media_type="image/svg+xml")
    if small is not None:
        return Response(small, media_type="image/webp", headers={"Cache-Control": KEPT})
    kind = mimetypes.guess_type(path.name)[0] or "image/webp"
    return FileResponse(path, media_type=kind, headers={"Cache-Control": KEPT}, stat_result=stat)


def serve(site: Site, host: str, port: int) -> None:
    """Answer until Ctrl-C, behind whatever else the machine does: training comes first."""
    import uvicorn

    os.nice(5)
    uvicorn.run(make_app(site, host), host=host, port=port, log_level="warning", timeout_graceful_shutdown=1)
