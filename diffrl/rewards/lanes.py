"""Threads in which rewards are computed while pictures are still being drawn.

A lane does one thing after the other, in the order it was asked: one lane a device, so that rewards of a device do not
compete for its memory, and one for each reward that waits for a server. Lanes never keep a process alive: a reward that
hangs can be given up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Pending(Generic[T]):
    """What a lane will have computed.

    Args:
        work: called in the lane.
    """

    def __init__(self, work: Callable[[], T]):
        self._work: Callable[[], T] | None = work
        self._begun, self._done = threading.Event(), threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Compute it; what is raised is kept for whoever waits."""
        assert self._work is not None
        self._begun.set()
        try:
            with torch.no_grad():  # gradients are on in every new thread
                self._value = self._work()
        except BaseException as error:  # raised again where the value is waited for
            self._error = error
        self._work = None  # lets go of the pictures
        self._done.set()

    def wait(self, timeout: float | None = None) -> T:
        """The value; `timeout` counts from when the work begins, not while it queues.

        Raises:
            TimeoutError: it was not there after `timeout` seconds.
            BaseException: whatever the work raised.
        """
        if timeout is not None:
            self._begun.wait()
        if not self._done.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


class Lane:
    """One thread that works through what it is given, begun with the first work."""

    def __init__(self, name: str):
        self.name = name
        self._queue: SimpleQueue[Pending] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        """Ask for work to be done after all that was asked before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"reward-{self.name}", daemon=True)
            self._thread.start()
        pending = Pending(work)
        self._queue.put(pending)
        return pending

    def _loop(self) -> None:
        while True:
            self._queue.get().run()
