"""Threads in which rewards are computed while images are still being drawn.

A lane does one thing after the other, in the order it was asked: one lane a device, so that rewards of a device do not
compete for its memory, and one for each reward that waits for a server. Lanes never keep a process alive: a reward that
hangs can be given up.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
POLL_SECONDS = 0.5
"""Seconds between two looks at whether a lane's work is overdue."""


class OverdueError(KeyboardInterrupt):
    """A reward has taken longer than it may, and its thread still runs. No scorer mistakes this for its own error.

    Args:
        name: whose it is.
        limit: seconds that it might have taken.
    """

    def __init__(self, name: str, limit: float):
        super().__init__(name, limit)
        self.name, self.limit = name, limit


class Pending(Generic[T]):
    """A value that a lane will have computed.

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

    def run(self, finish: Callable[[], None] = lambda: None) -> None:
        """Compute it; what is raised is kept for whoever asks for the value.

        Args:
            finish: waits for what the work has queued on its device.
        """
        assert self._work is not None
        self._begun = time.monotonic()
        try:
            with torch.no_grad():  # gradients are on in every new thread
                self._value = self._work()
            finish()
        except BaseException as error:  # raised again where the value is asked for
            self._error = error
        self._work = None  # lets go of the images
        self.done.set()

    def left(self) -> float:
        """Return seconds that it may still take; time in a queue does not count."""
        return math.inf if self.limit is None else self._begun + self.limit - time.monotonic()

    def value(self) -> T:
        """Return what the work returned.

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
        device: that it works on; on a GPU in a stream of its own, beside what samples there.
    """

    def __init__(self, name: str, device: torch.device | None = None):
        self.name, self.device = name, device
        self._queue: SimpleQueue[Pending[Any]] = SimpleQueue()
        self._running: Pending[Any] | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], T], name: str = "", limit: float | None = None) -> Pending[T]:
        """Ask for work to be done after all that was asked before.

        Args:
            work: what to do.
            name: whose it is.
            limit: seconds that it may take; None = as long as it takes.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"reward-{self.name}", daemon=True)
            self._thread.start()
        pending = Pending(work, name, limit)
        self._queue.put(pending)
        return pending

    def result(self, pending: Pending[T]) -> T:
        """Wait for what was submitted here; signals are heard meanwhile.

        Raises:
            OverdueError: it, or what it queues behind, takes longer than it may.
            BaseException: whatever the work raised.
        """
        while not pending.done.wait(POLL_SECONDS):
            running = self._running
            if running is not None and running.left() < 0 and not running.done.is_set():
                raise OverdueError(running.name, running.limit or 0.0)
        return pending.value()

    def _loop(self) -> None:
        with _stream_of(self.device) as finish:
            while True:
                self._running = self._queue.get()
                self._running.run(finish)
                self._running = None


@contextmanager
def _stream_of(device: torch.device | None) -> Iterator[Callable[[], None]]:
    """Let this thread's GPU be `device`, its work in a stream of its own; without a GPU do nothing.

    A new thread's GPU is the first one, whatever this rank's is, and its stream the one in which the rollout is queued.

    Yields:
        What waits for all that was queued.
    """
    if device is None or device.type != "cuda":
        yield lambda: None
        return
    torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))  # in which the weights came
    with torch.cuda.stream(stream):
        yield stream.synchronize


@contextmanager
def alarm(name: str, limit: float | None) -> Iterator[None]:
    """Interrupt this thread after `limit` seconds; another thread would cost time, and none is needed.

    It interrupts Python and what waits for the system (a server, a lock, a process), not a computation that never comes
    back from native code. Threads other than the main one have no alarm.

    Args:
        name: whose time it is.
        limit: seconds; None = no alarm.

    Raises:
        OverdueError: in the midst of what is done inside.
    """
    if limit is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise OverdueError(name, limit)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit, POLL_SECONDS)  # again and again, where it is not let through
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
