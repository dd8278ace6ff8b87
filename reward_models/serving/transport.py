"""HTTP for clients that must not hang: requests that another thread can cut off, and the choice among replicas.

A read time-out bounds the silence between two bytes, not the answer: a server that sends one byte a second is never
silent. So every request has an instant at which its socket is shut, whatever it is doing.
"""

from __future__ import annotations

import ipaddress
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class UnreachableError(Exception):
    """No whole answer came; the message says what happened instead."""


@dataclass(frozen=True)
class Answer:
    """A server's answer.

    Args:
        status: of HTTP.
        headers: case does not matter.
        body: at most as many bytes as asked for.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after(self) -> float:
        """Seconds that the server asks to wait; 0 if it does not say, or gives a date."""
        text = self.headers.get("Retry-After", "").strip()
        return float(text) if text.isdecimal() and len(text) < 7 else 0.0


class Lane:
    """A `requests` session for one thread at a time, whose sockets another thread can shut.

    Args:
        url: any address of the servers; on the loopback no proxy is used.
        token: sent as `Authorization: Bearer TOKEN`, or None.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self.expires = float("inf")
        self._was_cut = False
        self._sockets: list[socket.socket] = []
        self.session = requests.Session()
        self.session.trust_env = not is_loopback(url)
        self.session.headers["Accept-Encoding"] = "identity"  # no body grows when it is unpacked
        self.session.auth = _bearer(token)
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        adapter = _Adapter(self._connected)
        self.session.mount("http://", adapter)
        self.session.mount("https://", adapter)

    def ask(
        self,
        method: str,
        url: str,
        timeout: tuple[float, float],
        until: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = 1 << 24,
    ) -> Answer:
        """Send a request and read the whole answer.

        Args:
            method: GET or POST.
            url: its address.
            timeout: seconds to connect, and from there to the end of the answer.
            until: instant of `time.monotonic` at which it is over anyway.
            body: of the request.
            headers: of the request.
            most: bytes of the answer; more is no answer.

        Raises:
            UnreachableError: no connection, no answer in time, half an answer, or too much of it.
        """
        start, self._was_cut = time.monotonic(), False
        self.expires = min(until, start + sum(timeout))
        left = max(self.expires - start, 1e-3)
        pieces, size = [], 0
        try:
            response = self.session.request(
                method,
                url,
                data=body,
                headers=dict(headers or {}),
                timeout=(min(timeout[0], left), min(timeout[1], left)),
                allow_redirects=False,
                stream=True,
            )
            with response:
                for piece in response.iter_content(1 << 16):
                    pieces.append(piece)
                    size += len(piece)
                    if size > most:
                        raise UnreachableError(f"its answer is longer than {most} bytes")
                told = response.headers.get("Content-Length", "")
                if told.isdecimal() and int(told) != size:
                    raise UnreachableError(f"its answer broke off after {size} of {told} bytes")
                if self._was_cut:  # an end of headers, or of a body without a length, looks like a whole answer
                    raise UnreachableError(f"no whole answer within {time.monotonic() - start:.1f} s")
                return Answer(response.status_code, response.headers, b"".join(pieces))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if self._was_cut or time.monotonic() >= self.expires:
                raise UnreachableError(f"no whole answer within {time.monotonic() - start:.1f} s") from error
            raise UnreachableError(_reason(error)) from error
        finally:
            self.expires = float("inf")

    def cut(self) -> None:
        """End the request under way, from another thread."""
        self._was_cut = True
        for opened in list(self._sockets):
            try:
                socket.socket.shutdown(opened, socket.SHUT_RDWR)
            except OSError:
                continue  # closed already

    def _connected(self, opened: socket.socket) -> None:
        self._sockets[:] = [old for old in self._sockets if old.fileno() >= 0] + [opened]
        opened.settimeout(max(self.expires - time.monotonic(), 1e-3))  # or sending had the time of connecting
        if self._was_cut:  # while there was no socket to shut
            self.cut()


class _Adapter(HTTPAdapter):
    """Connections that tell of their sockets."""

    def __init__(self, connected: Callable[[socket.socket], None]) -> None:
        self._connected = connected
        super().__init__(pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools()

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = self._pools()
        return manager

    def _pools(self) -> dict[str, type[HTTPConnectionPool]]:
        connected = self._connected

        class Plain(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                connected(self.sock)

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                connected(self.sock)

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        return {"http": PlainPool, "https": SecurePool}


def _bearer(token: str | None) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    """Also without a token an authorisation of its own, or `requests` would send what ~/.netrc has for the host."""

    def authorise(request: requests.PreparedRequest) -> requests.PreparedRequest:
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    return authorise


def _reason(error: Exception) -> str:
    """What happened, in the words of the innermost exception."""
    seen: BaseException = error
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    text = str(seen).split("\n")[0][:160] or type(seen).__name__
    if isinstance(error, requests.Timeout):
        return f"no answer in time ({text})"
    return text


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine alone."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass
class _Replica:
    url: str
    failures: int = 0
    not_before: float = 0.0


class Replicas:
    """Servers of the same reward: asked by turns, those that failed after a pause that doubles.

    Args:
        urls: addresses.
        backoff: seconds of the first pause.
        longest: of the pauses, unless a server asks for more.
    """

    def __init__(self, urls: Sequence[str], backoff: float, longest: float = 30.0) -> None:
        self.urls, self.backoff, self.longest = list(urls), backoff, longest
        self._replicas = {url: _Replica(url) for url in urls}
        self._turn, self._lock = 0, threading.Lock()

    def begin(self) -> None:
        """Forget old failures if there is no server without one: a new batch tries as if for the first time."""
        now = time.monotonic()
        with self._lock:
            if all(replica.not_before > now or replica.failures for replica in self._replicas.values()):
                for replica in self._replicas.values():
                    replica.failures, replica.not_before = 0, 0.0

    def pick(self) -> tuple[str, float]:
        """The server to ask next, and how many seconds to wait before."""
        now = time.monotonic()
        with self._lock:
            self._turn += 1
            order = [self.urls[(self._turn + step) % len(self.urls)] for step in range(len(self.urls))]
            chosen = min(order, key=lambda url: max(self._replicas[url].not_before, now))
            return chosen, max(0.0, self._replicas[chosen].not_before - now)

    def failed(self, url: str, retry_after: float = 0.0) -> None:
        """Leave a server alone for a while; failures at the same time count once."""
        now = time.monotonic()
        with self._lock:
            replica = self._replicas[url]
            if now >= replica.not_before:
                replica.failures += 1
            pause = min(self.longest, self.backoff * 2 ** (min(replica.failures, 30) - 1)) * random.uniform(0.5, 1.0)
            replica.not_before = max(replica.not_before, now + max(pause, retry_after))

    def worked(self, url: str) -> None:
        """A server answers: it takes its turn again."""
        with self._lock:
            self._replicas[url].failures, self._replicas[url].not_before = 0, 0.0
