"""What a page of this server sends back: a form, from nowhere else, of a bounded size and in a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from fastapi import Request

from diffrl.gallery.errors import GalleryError

BODY = 20_000
"""Bytes of a form, at most."""
BODY_SECONDS = 10.0
"""In which a form must arrive."""
FIELDS = 10


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. Whoever takes it checks a key in it besides.

    Raises:
        GalleryError: it comes from another page (403), is too long (413), is not there within `BODY_SECONDS` (408), or
            has more than `FIELDS` fields (400).
    """
    if not same_origin(request.headers):
        raise GalleryError("Forms are taken from the gallery's own pages only. This came from another. Go there.", 403)
    body = await _body_of(request)
    try:
        values = parse_qs(body.decode("utf-8", "replace"), max_num_fields=FIELDS)
    except ValueError as error:
        raise GalleryError(f"A form has at most {FIELDS} fields. Got more. Send it from its own page.", 400) from error
    return {name: every[-1] for name, every in values.items()}


def same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a page of this server, or from no page at all."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == "same-origin"
    return origin is None or (urlsplit(origin).netloc or None) == headers.get("host")


async def _body_of(request: Request) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > BODY:
                    raise GalleryError(f"A form has at most {BODY} bytes. Got more.", 413)
    except TimeoutError:
        sentence = f"A form must arrive within {BODY_SECONDS:g} s. Got {len(body)} bytes of it. Send it again."
        raise GalleryError(sentence, 408) from None
    return body
