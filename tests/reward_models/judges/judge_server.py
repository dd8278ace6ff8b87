"""A judge on a local HTTP server that answers in the chat protocol from what it sees, or as a test wants it to."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

from tests.patience import LONG


def number_asked(body: dict[str, Any]) -> int:
    """The number that a question of `ask` is."""
    return int(body["messages"][0]["content"][0]["text"])


def pictures_of(body: dict[str, Any]) -> list[np.ndarray]:
    """The images in a request, as the server decodes them: (H, W, 3) uint8 each."""
    urls = [part["image_url"]["url"] for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))) for url in urls]


def question_of(body: dict[str, Any]) -> str:
    return next(part["text"] for part in body["messages"][0]["content"] if part["type"] == "text")


def brightness(pictures: list[np.ndarray], channel: int) -> float:
    return float(np.mean([picture[..., channel].mean() for picture in pictures])) / 255


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """What the judge says: red, green and blue of the images, in the form that the question asks for."""
    pictures, text = pictures_of(body), question_of(body)
    red, green, blue = (brightness(pictures, channel) for channel in range(3))
    logprobs = None
    if body.get("logprobs"):
        said = "Yes"
        options = {"Yes": 0.9 * red, " no": 0.9 * (1 - red), "yes": 0.05 * red, "Maybe": 0.05}
        top = [{"token": token, "logprob": float(np.log(max(p, 1e-9)))} for token, p in options.items()]
        logprobs = {"content": [{"token": said, "logprob": top[0]["logprob"], "top_logprobs": top}]}
    elif "Alignment Score (1-5)" in text:
        second = "Physics" if "Physics" in text else "Coherence"
        said = (
            f"Alignment Score (1-5): {1 + 4 * red:.6f}\n{second} Score (1-5): {1 + 4 * green:.6f}\n"
            f"Style Score (1-5): {1 + 4 * blue:.6f}"
        )
    elif "'Final Score:'" in text:
        said = f"circle (object): 1\n**Final Score:** {1 + 4 * red:.6f}"
    else:
        said = f'Thinking of it: {{"note": 1}}.\n```json\n{{"score": {10 * red:.6f}}}\n```'
    return {"choices": [{"message": {"content": said}, "logprobs": logprobs, "finish_reason": "stop"}]}


class Judge(ThreadingHTTPServer):
    """A server on a free local port, answering in the chat protocol.

    Args:
        handle: gets (handler, request number, body) and answers as it likes; returns None if it did, or a body to send.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, handle: Callable[[BaseHTTPRequestHandler, int, dict[str, Any]], Any] | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.lock, self.running, self.most_running = threading.Lock(), 0, 0
        self.handle_chat = handle or (lambda handler, number, body: answer(body))
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Judge

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def reply(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.server.headers_seen.append(dict(self.headers))
        if self.path == "/v1/models":
            self.reply(200, {"data": [{"id": "judge"}, {"id": "UnifiedReward"}]})
        else:
            self.reply(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append(body)
            self.server.headers_seen.append(dict(self.headers))
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        try:
            assert self.path == "/v1/chat/completions", self.path
            if (said := self.server.handle_chat(self, number, body)) is not None:
                self.reply(200, said)
        finally:
            with self.server.lock:
                self.server.running -= 1


@contextmanager
def judges() -> Iterator[Callable[..., Judge]]:
    """A function that starts judges, which are stopped at the end."""
    running: list[Judge] = []

    def start(handle: Any = None) -> Judge:
        running.append(Judge(handle))
        return running[-1]

    yield start
    for judge in running:
        judge.shutdown()
        judge.server_close()


def said(text: Any = "fine", **more: Any) -> dict[str, Any]:
    """A chat completion."""
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop", **more}]}


def client(judge, **options):
    """A chat client of a judge, which hurries to ask again but waits for answers."""
    from reward_models.judges.chat import ChatClient

    return ChatClient(**{"url": judge.url, "model": "judge", "timeout": LONG, "backoff": 0.01, "retries": 2, **options})


def ask(asker, count=1, **fields):
    """So many questions, whose texts are their numbers."""
    return asker.ask_all([lambda i=i: [{"type": "text", "text": f"{i}"}] for i in range(count)], **fields)
