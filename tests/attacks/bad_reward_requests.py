"""Bad requests to a reward server, for load_rewards.py: each with what must come of it."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import requests
import safetensors.torch
import torch
from PIL import Image

from reward_models.serving.wire import JSON, SAFETENSORS
from tests.attacks import http_requests

TOKEN = "load-test-token"
"""Of the server under test."""
MEDIA = torch.zeros(2, 3, 37, 41, dtype=torch.uint8)


@cache
def png(side: int = 37, kind: str = "PNG") -> bytes:
    """A picture of one colour as PNG, or of another kind."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (200, 30, 30)).save(buffer, kind)
    return buffer.getvalue()


def as_json(*files: bytes, **others: Any) -> bytes:
    """A request with these pictures."""
    media = [base64.b64encode(file).decode() for file in files]
    return json.dumps({"media": media, "prompts": ["a red circle"] * len(files), **others}).encode()


def post(body: Callable[[], Any], kind: str, status: int, **options: Any) -> Callable[[Any, requests.Session], Any]:
    """A bad request and the status it must get."""
    return lambda client, session: client.refused(client.post(session, body(), kind, **options), status)


def head(length: int, **headers: str) -> bytes:
    """The head of a request with a right token."""
    given = {"Host": "x", "Authorization": f"Bearer {TOKEN}", "Content-Type": JSON, "Content-Length": str(length)}
    return http_requests.head("POST", "/v1/score/shapes", given | headers)


BAD: dict[str, Callable[[Any, requests.Session], str | None]] = {
    "truncated picture": post(lambda: as_json(png()[:60]), JSON, 422),
    "flipped bytes": post(lambda: as_json(png()[:50] + b"\x00\xff" * 20 + png()[90:]), JSON, 422),
    "no base64": post(lambda: b'{"media": ["%%%"], "prompts": ["a"]}', JSON, 422),
    "JPEG": post(lambda: as_json(png(kind="JPEG")), JSON, 415),
    "two sizes": post(lambda: as_json(png(37), png(41)), JSON, 422),
    "prompt missing": post(lambda: as_json(png(), prompts=[]), JSON, 422),
    "no JSON": post(lambda: b'{"media": [', JSON, 400),
    "deep JSON": post(lambda: b"[" * 100_000, JSON, 400),
    "many values": post(lambda: b'{"media": [' + b"[]," * 220_000 + b"1]}", JSON, 413),
    "a list": post(lambda: b"[]", JSON, 400),
    "pickle": post(lambda: pickle.dumps({"media": [1]}), "application/octet-stream", 415),
    "pickle as safetensors": post(lambda: pickle.dumps({"media": [1]}), SAFETENSORS, 400),
    "cut safetensors": post(lambda: safetensors.torch.save({"media": MEDIA})[:-7], SAFETENSORS, 400),
    "floats": post(lambda: safetensors.torch.save({"media": MEDIA.float()}), SAFETENSORS, 422),
    "form": post(lambda: {"media": "x"}, "application/x-www-form-urlencoded", 415),
    "oversized": post(lambda: b"x" * 1_500_000, JSON, 413),
    "oversized, chunked": post(lambda: iter([b"x" * 100_000] * 15), JSON, 413),
    "large picture": post(lambda: as_json(png(5000)), JSON, 413),
    "many samples": post(lambda: as_json(*[png(1)] * 300), JSON, 413),
    "wrong token": post(lambda: as_json(png()), JSON, 401, token="wrong-token"),
    "unknown reward": post(lambda: as_json(png()), JSON, 404, name="beauty"),
    "wrong method": lambda client, session: client.refused(
        session.get(f"{client.url}/v1/score/shapes", timeout=60), 405
    ),
    "no HTTP": lambda client, session: client.raw(b"\x16\x03\x01 hello\r\n\r\n", 0.01),
    "dropped in the head": lambda client, session: client.raw(head(100)[:40]),
    "dropped in the body": lambda client, session: client.raw(head(100_000) + b"x" * 50_000),
    "dropped before the answer": lambda client, session: client.raw(head(len(as_json(png()))) + as_json(png())),
}
"""Bad requests, sent by a `load_rewards.Client`; each says what is wrong with the answer, or None."""
