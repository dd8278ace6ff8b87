"""Waiting for what must come, however slow the machine is; and ports that nobody else can take meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 120.0
"""Seconds in which even a machine that stands still for a while gets done what takes a moment."""


def until(condition: Callable[[], object], seconds: float = LONG) -> None:
    """Wait for something to come true, and fail if it does not."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)


@contextmanager
def held_port() -> Iterator[int]:
    """A port on which nobody listens: connections are refused, until the test's own server takes it.

    It stays bound, so the system gives it to no other process; a server that sets SO_REUSEADDR may listen there.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
