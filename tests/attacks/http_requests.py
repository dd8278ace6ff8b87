"""Mutated requests to real servers, each in a process of its own: a reward server and a gallery."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import requests

from tests.attacks.trial import MARK, SECONDS

GROWTH = 500.0
"""10^6 bytes that a server may take beyond what it had when it was warm."""
SETTLE = 5.0
"""Seconds in which it gives memory back."""


@dataclass
class Server:
    """A server under attack.

    Args:
        url: where it listens.
        process: that it runs in.
        log: what it writes.
        warm: its memory before the attack, in 10^6 bytes.
        read: how much of the log has been looked at.
    """

    url: str
    process: psutil.Process
    log: Path
    warm: float = 0.0
    read: int = field(default=0)

    def memory(self) -> float:
        """Resident memory in 10^6 bytes."""
        return float(self.process.memory_info().rss) / 1e6

    def wrong(self) -> tuple[str, str] | None:
        """What is wrong with the server itself after a request; None if nothing is."""
        if not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE:
            return "died", self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
        text = self.log.read_text(encoding="utf-8", errors="replace")
        new, self.read = text[self.read :], len(text)
        if MARK in new:
            return "traceback", new[-3000:]
        end = time.monotonic() + SETTLE
        while (now := self.memory()) > self.warm + GROWTH:
            if time.monotonic() > end:
                self.warm = now  # told once, not again with every request
                return "memory", f"{now:.0f} MB, {self.warm:.0f} MB before the attack"
            time.sleep(0.2)
        return None


def answer_of(server: Server, method: str, path: str, **options: Any) -> requests.Response | str:
    """Send one request, however wrong; the answer, or why there is none."""
    session = requests.Session()
    try:
        request = requests.Request(method, server.url, **options)
        prepared = session.prepare_request(request)
        prepared.url = server.url + path  # as it is: nothing is quoted, no dots are removed
        return session.send(prepared, timeout=SECONDS, allow_redirects=False)
    except requests.Timeout:
        raise
    except (requests.RequestException, ValueError, UnicodeError) as error:
        return f"{type(error).__name__}: {error}"  # no request at all, or a connection that was closed
    finally:
        session.close()


def raw(server: Server, data: bytes, wait: float = 0.2) -> bytes:
    """Send bytes, wait a moment, drop the connection; what came back."""
    with contextlib.suppress(OSError), connection(server.url) as line:
        line.settimeout(wait)
        line.sendall(data)
        return line.recv(65536)
    return b""


def connection(url: str) -> socket.socket:
    """A connection to a server."""
    parts = urlsplit(url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 80)), 10)


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace")


def refused(status: int) -> bool:
    """Whether it is no failure of the server's."""
    return status < 500 or status == 503


@contextmanager
def prepared(place: Path) -> Iterator[None]:
    """Start both servers."""
    from tests.attacks import gallery_requests, reward_requests

    with gallery_requests.prepared(place), reward_requests.prepared():
        yield


def attempt(rng: random.Random, folder: Path) -> tuple[str, str, str]:
    """Send one request to one of the servers, then a good one: outcome, what it was, what was seen."""
    from tests.attacks import gallery_requests, reward_requests

    subject: Any = rng.choice((reward_requests, gallery_requests))
    server: Server = subject.server()
    done = "nothing was sent"
    try:
        done, problem = subject.send(rng, server)
        problem = problem or server.wrong() or subject.still_good(server)
    except requests.Timeout:
        problem = ("hang", f"no answer within {SECONDS:g} s")
    name = subject.__name__.rpartition(".")[2].partition("_")[0]
    outcome, detail = problem or (f"{name} held", "")
    return outcome, f"{name}: {done}", detail
