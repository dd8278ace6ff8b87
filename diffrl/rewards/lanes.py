"""Threads in which rewards are computed, so that one that hangs can be given up.

A lane does one thing after the other, in the order it was asked: one lane a device, so that rewards of a device do not
compete for its memory, and one for each reward that waits for a server. They work while pictures are still being drawn,
but for the lane of rewards that would take the model's own cores: it begins a work when somebody waits for it. Lanes
never keep a process alive.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
GLANCE = 0.5
"""Seconds between two looks at whether a lane's work is overdue."""


class OverdueError(Exception):
    """A work has taken longer than it may; it is not over.

    Args:
        name: whose it is.
        limit: seconds that it might have taken.
    """

    def __init__(self, name: str, limit: float):
        super().__init__(name, limit)
        self.name, self.limit = name, limit


class Pending(Generic[T]):
    """What a lane will have computed.

    Args:
        work: called in the lane.
        name: whose it is.
        limit: seconds that it may take; None = as long as it takes.
    """

    def __init__(self, work: Callable[[], T], name: str = "", limit: float | None = None):
        self._work: Callable[[], T] | None = work
        self.name, self.limit = name, limit
        self.done, self._begun = threading.Event(), math.inf
        self._value: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Compute it; what is raised is kept for whoever asks for the value."""
        assert self._work is not None
        self._begun = time.monotonic()
        try:
            with torch.no_grad():  # gradients are on in every new thread
                self._value = self._work()
        except BaseException as error:  # raised again where the value is asked for
            self._error = error
        self._work = None  # lets go of the pictures
        self.done.set()

    def left(self) -> float:
        """Seconds that it may still take; time in a queue does not count."""
        return math.inf if self.limit is None else self._begun + self.limit - time.monotonic()

    def value(self) -> T:
        """What the work returned.

        Raises:
            BaseException: whatever it raised.
        """
        if self._error is not None:
            raise self._error
        return self._value


class Lane:
    """One thread that works through what it is given, begun with the first work.

    Args:
        name: of the thread.
        waits: begin a work when its value is waited for, not when it is submitted.
    """

    def __init__(self, name: str, waits: bool = False):
        self.name, self.waits = name, waits
        self._queue: SimpleQueue[Pending] = SimpleQueue()
        self._running: Pending | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], T], name: str = "", limit: float | None = None) -> Pending[T]:
        """Ask for work to be done after all that was asked before.

        Args:
            work: what to do.
            name: whose it is.
            limit: seconds that it may take; None = as long as it takes.
        """
        pending = Pending(work, name, limit)
        if not self.waits:
            self._begin(pending)
        return pending

    def result(self, pending: Pending[T]) -> T:
        """Wait for what was submitted here; signals are heard meanwhile.

        Raises:
            OverdueError: it, or what it queues behind, takes longer than it may.
            BaseException: whatever the work raised.
        """
        if self.waits:
            self._begin(pending)
        while not pending.done.wait(GLANCE):
            running = self._running
            if running is not None and running.left() < 0 and not running.done.is_set():
                raise OverdueError(running.name, running.limit or 0.0)
        return pending.value()

    def _begin(self, pending: Pending[T]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"reward-{self.name}", daemon=True)
            self._thread.start()
        self._queue.put(pending)

    def _loop(self) -> None:
        while True:
            self._running = pending = self._queue.get()
            pending.run()
            self._running = pending = None
