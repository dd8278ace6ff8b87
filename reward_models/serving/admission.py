"""How much the scoring service holds at one time: a count of requests and a count of bytes, refused beyond.

A request takes a place once it is here whole, so that bodies that are half sent take none.
"""

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
        self._admission = admission
        self.held = self.most = 0
        self.has_place = False

    def reserve(self, size: int) -> None:
        """Hold more bytes; fewer if negative.

        Raises:
            BusyError: the service would hold too many.
        """
        self._admission.hold(self, size)

    def enter(self) -> None:
        """Take a place: the request is here whole.

        Raises:
            BusyError: there is none.
        """
        self._admission.enter(self)


class Admission:
    """Lets requests in.

    Args:
        max_requests: at one time.
        max_bytes: held by all of them together. One that is alone may hold more: its own limits bound it.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self.arriving = self.requests = self.bytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[Ticket]:
        """Let a request arrive, and give back what it held at its end.

        Raises:
            BusyError: there would be no place for it.
        """
        ticket = Ticket(self)
        with self._lock:
            self._require_place()
            self.arriving += 1
        try:
            yield ticket
        finally:
            with self._lock:
                self.requests -= ticket.has_place
                self.arriving -= not ticket.has_place
                self.bytes -= ticket.held

    def enter(self, ticket: Ticket) -> None:
        """Give a request that has arrived a place; see `Ticket.enter`."""
        with self._lock:
            self._require_place()
            ticket.has_place = True
            self.arriving -= 1
            self.requests += 1

    def hold(self, ticket: Ticket, size: int) -> None:
        """Count bytes of a request; see `Ticket.reserve`."""
        with self._lock:
            alone = self.bytes == ticket.held
            if size > 0 and self.bytes + size > self.max_bytes and not alone:
                raise BusyError(f"The server holds {self.bytes / 1e6:.0f} MB of requests already. Ask again later.")
            self.bytes += size
            ticket.held += size
            ticket.most = max(ticket.most, ticket.held)

    def _require_place(self) -> None:
        if self.requests >= self.max_requests:
            raise BusyError(f"The server has {self.requests} requests under way, as many as it takes. Ask again later.")
