"""What the trainer tells its user, in words: on the console and in the run's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Messages:
    """Sentences for the user. Every rank has one.

    Args:
        sinks: each takes a message: the console, the log.
        main: whether this is the rank that speaks for all.
    """

    def __init__(self, sinks: Sequence[Callable[[str], None]] = (), main: bool = True):
        self._sinks, self._main = sinks, main

    def report(self, message: str) -> None:
        """Report what all ranks know, once, by the main rank."""
        if self._main:
            self.report_own(message)

    def report_own(self, message: str) -> None:
        """Report what this rank alone may know."""
        for sink in self._sinks:
            sink(message)
