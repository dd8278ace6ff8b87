"""Connections of diffrl's two servers, the gallery's and the rewards': bounded in number and time, quiet in the log.

uvicorn closes a connection that rests after an answer. It waits without end for a head, for a body that is still
coming after its answer, and for a client that does not read; and it raises where a client's bytes turn out broken
after an answer has begun. Here none of that holds a place for ever, and a broken request is one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)
MOST = 512
"""Connections at one time, where the system lets a process open twice as many files."""
BACKLOG = 64
"""Connections that are accepted at once; before further ones, those that are too many are closed."""
STEP = 64_000
"""Bytes of an answer that a client must read in each `timeout_keep_alive`, unless it has then read all."""
FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return the settings of a server whose connections are watched.

    Args:
        app: the ASGI application.
        **options: of `uvicorn.Config`. timeout_keep_alive is the patience with a client in seconds: what it holds up
            for that long, and for as long again at most, ends with its connection.
    """
    return uvicorn.Config(one_line(app), **({"http": Connection, "ws": "none", "backlog": BACKLOG} | options))


def most_connections() -> int:
    """Return how many connections are kept at one time: half of the files that the process may open, or `MOST`."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if limit == resource.RLIM_INFINITY else max(1, min(MOST, limit // 2))


def one_line(app: Any) -> Any:
    """Return the ASGI application, with a line in the log instead of a traceback where no code of ours is at fault.

    That is where the client has gone, where a file changes or goes while it is sent, and at the server's end.
    """

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, ends_when_cancelled(receive), send)
            return
        try:
            await app(scope, receive, send)
        except (ClientDisconnect, OSError, h11.LocalProtocolError, asyncio.CancelledError) as error:
            log.warning("An answer was broken off: %s: %s", type(error).__name__, str(error) or scope.get("path"))

    return wrapped


def ends_when_cancelled(receive: Any) -> Any:
    """Return `receive` of a lifespan; a second Ctrl-C, which cancels that, is an end like another."""

    async def received() -> Any:
        try:
            return await receive()
        except asyncio.CancelledError:
            return {"type": "lifespan.shutdown"}

    return received


class Connection(H11Protocol):
    """End a connection that its client holds up.

    It is looked at once in `timeout_keep_alive`; what was held up at one look and still is at the next is ended. Where
    there are too many connections, the one that has waited longest goes.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it on, and let another go if there are too many."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._waited_for: Any = self  # neither None nor a request
        self._unread = 0
        self._look = self.loop.call_later(self.timeout_keep_alive, self.look)
        most = most_connections()
        if len(self.connections) <= most:
            return
        staying = [other for other in self.connections if not other.transport.is_closing()]
        if len(staying) > most:
            waiting = [other for other in staying if other is not self and other.is_waiting()]
            if waiting:  # first those that never asked anything
                min(waiting, key=lambda other: (other.cycle is not None, other.waiting_since)).transport.abort()
            else:
                transport.write(FULL)
                transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._look.cancel()
        super().connection_lost(exc)

    def is_waiting(self) -> bool:
        """Return whether nothing is being answered: the client must send, or end what it sends."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def look(self) -> None:
        """End the connection if the client holds up what it held up at the last look."""
        self._look = self.loop.call_later(self.timeout_keep_alive, self.look)
        held = self.flow.write_paused or self.transport.is_closing()
        unread = self.transport.get_write_buffer_size() if held else 0
        if unread and self._unread and unread > self._unread - STEP:
            self.transport.abort()
        elif not unread and self.is_waiting() and self._waited_for is self.cycle:
            self.transport.close()
        self._unread = unread
        self._waited_for = self.cycle if self.is_waiting() else self

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._unread = 0
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless another answer has begun; the application sees that the client has gone."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
