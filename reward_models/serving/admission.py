"""How much the scoring service holds at one time: a count of requests and a count of bytes, refused beyond."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from reward_models.serving.wire import RefusedError


class BusyError(RefusedError):
    """The service is full; the request may come again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(503, sentence)


class Ticket:
    """What one request holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission, self.held = admission, 0

    def reserve(self, size: int) -> None:
        """Hold more bytes; fewer if negative.

        Raises:
            BusyError: the service would hold too many.
        """
        self._admission.hold(size)
        self.held += size


class Admission:
    """Lets requests in.

    Args:
        max_requests: at one time.
        max_bytes: held by all of them together.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self.requests = self.bytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[Ticket]:
        """Let a request in, and give back what it held at its end.

        Raises:
            BusyError: too many requests are inside.
        """
        with self._lock:
            if self.requests >= self.max_requests:
                raise BusyError(
                    f"The server has {self.requests} requests under way, as many as it takes. Ask again later."
                )
            self.requests += 1
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            with self._lock:
                self.requests -= 1
                self.bytes -= ticket.held

    def hold(self, size: int) -> None:
        """Count bytes; see `Ticket.reserve`."""
        with self._lock:
            if size > 0 and self.bytes + size > self.max_bytes:
                raise BusyError(f"The server holds {self.bytes / 1e6:.0f} MB of requests already. Ask again later.")
            self.bytes += size
