"""A run that is asked to stop finishes its iteration and writes a checkpoint first."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Interruption(Exception):  # noqa: N818 - no error: the run ends as it was asked to
    """The run was asked to stop; its checkpoint is written.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class StopSignal:
    """Remembers SIGTERM and the first Ctrl-C; a second Ctrl-C, a second or more later, ends the run at once.

    Under a launcher one Ctrl-C arrives twice: from the terminal and from the launcher.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._when = 0.0

    @property
    def received(self) -> bool:
        """Whether the run was asked to stop."""
        return self.number is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, the signals are remembered; afterwards they do what they did before."""
        previous = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self.received and now - self._when > 1.0:
            raise KeyboardInterrupt
        if not self.received:
            self.number, self._when = number, now
