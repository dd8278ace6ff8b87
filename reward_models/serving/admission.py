"""How much the scoring service holds at one time: a count of requests and a count of bytes, refused beyond.

A request takes a slot once it is here whole, so that bodies that are half sent take none.
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
        self.held, self.has_slot = 0, False

    def reserve(self, size: int) -> None:
        """Hold more bytes.

        Raises:
            BusyError: the service would hold too many.
        """
        service = self._admission
        with service.lock:
            alone = service.bytes == self.held
            if service.bytes + size > service.max_bytes and not alone:
                raise BusyError(f"The server holds {service.bytes / 1e6:.0f} MB of requests already. Ask again later.")
            service.bytes += size
            self.held += size

    def enter(self) -> None:
        """Take a slot: the request is here whole.

        Raises:
            BusyError: there is none.
        """
        service = self._admission
        with service.lock:
            service.require_slot()
            self.has_slot = True
            service.arriving -= 1
            service.requests += 1


class Admission:
    """Lets requests in.

    Args:
        max_requests: at one time.
        max_bytes: held by all of them together. One that is alone may hold more: its own limits bound it.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self.arriving = self.requests = self.bytes = 0
        self.lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[Ticket]:
        """Let a request arrive, and give back what it held at its end.

        Raises:
            BusyError: there would be no slot for it.
        """
        ticket = Ticket(self)
        with self.lock:
            self.require_slot()
            self.arriving += 1
        try:
            yield ticket
        finally:
            with self.lock:
                self.requests -= ticket.has_slot
                self.arriving -= not ticket.has_slot
                self.bytes -= ticket.held

    def require_slot(self) -> None:
        """Refuse a request where there are as many as the service takes."""
        if self.requests >= self.max_requests:
            raise BusyError(f"The server has {self.requests} requests under way, as many as it takes. Ask again later.")
