"""Bad requests to a reward server, for load_rewards.py: each with what must come of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import requests
import safetensors.torch
import torch

from reward_models.serving.wire import PROTOCOL, PROTOCOL_HEADER
from tests.attacks import http_requests

TOKEN = "load-test-token"
"""Of the server under test."""
MEDIA = torch.zeros(2, 3, 37, 41, dtype=torch.uint8)


def body_of(media: torch.Tensor = MEDIA, **others: Any) -> bytes:
    """A request with these images."""
    return with_text(json.dumps({"prompts": ["a red circle"] * len(media), **others}), media)


def with_text(text: str, media: torch.Tensor = MEDIA) -> bytes:
    """A request that says this beside its media."""
    return safetensors.torch.save({"media": media}, metadata={"batch": text})


def post(body: Callable[[], Any], status: int, **options: Any) -> Callable[[Any, requests.Session], Any]:
    """A bad request and the status it must get."""
    return lambda client, session: client.refused(client.post(session, body(), **options), status)


def head(length: int, **headers: str) -> bytes:
    """The head of a request with a right token."""
    known = {"Host": "x", "Authorization": f"Bearer {TOKEN}", PROTOCOL_HEADER: str(PROTOCOL)}
    return http_requests.head("POST", "/v1/score/shapes", known | {"Content-Length": str(length)} | headers)


BAD: dict[str, Callable[[Any, requests.Session], str | None]] = {
    "cut off": post(lambda: body_of()[:-7], 400),
    "another file": post(lambda: pickle.dumps({"media": [1]}), 400),
    "floats": post(lambda: body_of(MEDIA.float()), 400),
    "prompt missing": post(lambda: body_of(prompts=[]), 422),
    "no JSON": post(lambda: with_text('{"prompts": ['), 400),
    "deep JSON": post(lambda: with_text("[" * 100_000), 400),
    "many values": post(lambda: with_text('{"groups": [' + "1," * 220_000 + "1]}"), 413),
    "a list": post(lambda: with_text("[]"), 400),
    "form": post(lambda: {"media": "x"}, 400),
    "an older client": post(body_of, 400, protocol=1),
    "oversized": post(lambda: b"x" * 1_500_000, 413),
    "oversized, chunked": post(lambda: iter([b"x" * 100_000] * 15), 413),
    "large image": post(lambda: body_of(torch.zeros(1, 3, 1, 300_000, dtype=torch.uint8)), 413),
    "many samples": post(lambda: body_of(torch.zeros(300, 3, 1, 1, dtype=torch.uint8)), 413),
    "wrong token": post(body_of, 401, token="wrong-token"),
    "unknown reward": post(body_of, 404, name="beauty"),
    "wrong method": lambda client, session: client.refused(
        session.get(f"{client.url}/v1/score/shapes", timeout=60), 405
    ),
    "no HTTP": lambda client, session: client.raw(b"\x16\x03\x01 hello\r\n\r\n", 0.01),
    "dropped in the head": lambda client, session: client.raw(head(100)[:40]),
    "dropped in the body": lambda client, session: client.raw(head(100_000) + b"x" * 50_000),
    "dropped before the answer": lambda client, session: client.raw(head(len(body_of())) + body_of()),
}
"""Bad requests, sent by a `load_rewards.Client`; each says what is wrong with the answer, or None."""
