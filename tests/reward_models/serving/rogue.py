"""Servers that list a reward as they should and then misbehave, one way each."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reward_models.base import ScorerSpec
from reward_models.serving.wire import Limits, encode_listing

SPEC = ScorerSpec("mean", "Mean value.", (0.0, 255.0), media=("image", "video"))
STOP = threading.Event()
Behaviour = Callable[[socket.socket, int], object]


def head(status: str, length: int | None = None, *others: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *others]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(status: str, body: bytes, *others: str) -> bytes:
    return head(status, len(body), *others) + body


def drip(connection: socket.socket, data: bytes) -> None:
    """One byte now and then, for ever: no read time-out sees it."""
    connection.sendall(data)
    while not STOP.wait(0.05):
        connection.sendall(b" ")


def flood(connection: socket.socket, number: int) -> None:
    connection.sendall(head("200 OK"))
    while not STOP.is_set():
        connection.sendall(b" " * 65536)


def reset(connection: socket.socket, number: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says(data: bytes) -> Behaviour:
    return lambda connection, number: connection.sendall(data)


def zeros(count: int) -> bytes:
    """A right answer to a request of `count` samples."""
    scores = {"raw": [0.0] * count, "ok": [True] * count, "errors": [None] * count}
    return json.dumps({**scores, "parts": {}, "version": "1"}).encode()


ROGUES: dict[str, Behaviour] = {
    "hangs": lambda connection, number: STOP.wait(60),
    "drips its head": lambda connection, number: drip(connection, b"HTTP/1.1 200 OK\r\nX-A: "),
    "drips its body": lambda connection, number: drip(connection, head("200 OK", 100_000)),
    "drips chunks": lambda connection, number: drip(connection, head("200 OK", None, "Transfer-Encoding: chunked")),
    "floods": flood,
    "resets": reset,
    "hangs up": lambda connection, number: None,
    "breaks off": says(head("200 OK", 1000) + b'{"raw": [0.0, 0.0'),
    "breaks off without a length": says(head("200 OK") + b'{"raw": [0.0, 0.0'),
    "speaks no HTTP": says(b"220 mail.example.org ESMTP\r\n"),
    "answers nothing": says(whole("200 OK", b"")),
    "answers for others": says(whole("200 OK", zeros(7))),
    "answers a page": says(whole("200 OK", b"<html>0.0</html>")),
    "is full": says(whole("503 Service Unavailable", b'{"error": "full"}')),
    "is behind a broken gateway": says(whole("502 Bad Gateway", b"<html>502</html>")),
    "never reads": lambda connection, number: None,
}


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        rogue, data = self.server.rogue, b""  # type: ignore[attr-defined]
        try:
            while b"\r\n\r\n" not in data:
                piece = self.request.recv(65536)
                if not piece:
                    return
                data += piece
            top, _, body = data.partition(b"\r\n\r\n")
            if top.startswith(b"GET"):
                self.request.sendall(whole("200 OK", rogue.listing, "Connection: close"))
                return
            rogue.heads.append(top.decode())
            if STOP.wait(rogue.late):
                return
            length = next(int(x.split(b":")[1]) for x in top.lower().split(b"\r\n") if x.startswith(b"content-length"))
            while len(body) < length:
                body += self.request.recv(65536)
            rogue.behaviour(self.request, len(rogue.heads))
        except OSError:
            return  # the client has cut the connection, as it should


class Rogue(socketserver.ThreadingTCPServer):
    """Lists the reward "mean", and then behaves."""

    allow_reuse_address, daemon_threads, block_on_close, request_queue_size = True, True, False, 64

    def __init__(self, behaviour: Behaviour, listing: bytes | None, late: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rogue, self.behaviour, self.late = self, behaviour, late
        self.heads: list[str] = []
        self.listing = encode_listing({"mean": SPEC}, Limits()) if listing is None else listing
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def rogue(behaviour: str | Behaviour, listing: bytes | None = None, late: float = 0.0) -> Iterator[Rogue]:
    """A rogue server in a thread, which begins to read what it is sent `late` seconds after it was asked."""
    STOP.clear()
    chosen = ROGUES[behaviour] if isinstance(behaviour, str) else behaviour
    server = Rogue(chosen, listing, 60.0 if behaviour == "never reads" else late)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        STOP.set()
        server.shutdown()
        server.server_close()
        thread.join()
