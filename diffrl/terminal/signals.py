"""A run that is asked to stop finishes its iteration and writes a checkpoint first, and it never hangs over it.

Schedulers preempt with SIGTERM and kill some time later; a user presses Ctrl-C, once or twice. A handler only remembers
the signal, as an iteration cannot be left in the middle: other ranks wait in its collectives.

Python runs handlers in the main thread, between two of its instructions. While that thread is in a reward's call that
hangs, or waits for a rank that is gone, no handler runs. So a second thread learns of signals by
`signal.set_wakeup_fd`, and ends the process when nobody else does. (What holds the interpreter's lock for ever holds
that thread too; only SIGKILL ends it.)
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

WATCHED = (signal.SIGTERM, signal.SIGINT)
TWICE = 1.0
"""Seconds within which a second signal is the same one: under a launcher one Ctrl-C comes from the terminal too."""
ANSWER = 30.0
"""Seconds in which a signal must be answered, beyond the time that an iteration takes."""
LAUNCHER = 25.0
"""The same with several processes, however long iterations take: torch's launcher kills after 30 s."""
UNWIND = 5.0
"""Seconds in which a run that ends at once must have let go of what it holds."""


class Interruption(Exception):  # noqa: N818 - no error: the run ends as it was asked to
    """The run was asked to stop; its checkpoint is written.

    Args:
        number: of the signal; None where a callback asked.
    """

    def __init__(self, number: int | None):
        super().__init__(number)
        self.number = number


class ImmediateStop(KeyboardInterrupt):
    """The run was asked to stop where there is nothing to finish, or a second time."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Ended(SystemExit):
    """The end of a run that stops before its last iteration, with an exit code of ours and not of a stranger's."""


_before: dict[int, Any] = {}
"""Handlers that a `StopSignal` stands in for."""
_mask: list[Any] = []
"""Which signals were blocked before a fork began."""


def _as_before() -> None:
    """Give the signals back."""
    if _before:
        signal.set_wakeup_fd(-1)
    for number in list(_before):
        signal.signal(number, _before.pop(number))


def _hold() -> None:
    """Hold signals back until a fork is through: one to the new process would be taken for ours, or be lost."""
    if _before:
        _mask.append(signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED))


def _release() -> None:
    if _mask:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.pop())


def _leave() -> None:
    """Leave the new process's signals to it."""
    _as_before()
    _release()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_leave)


class StopSignal:
    """Remembers SIGTERM and Ctrl-C where something is to be finished first, and elsewhere ends the run at once.

    A second signal, a second or more after the first, ends the run at once wherever it is; so does one that nothing
    answers in time. What ends at once raises `ImmediateStop`; if that does not get through, the process ends without.

    A notebook or a program that calls diffrl has more to lose than the run: its process is never ended from here
    (`owns_process` False), so a reward that hangs keeps it waiting, as any other function that hangs would.

    Args:
        owns_process: whether the process is there for the run alone, as under the command line.
    """

    def __init__(self, owns_process: bool = True) -> None:
        self.owns_process = owns_process
        self.number: int | None = None
        self.longest = 0.0
        self.processes = 1
        self.speaks = True
        self.kept: Callable[[], str] = lambda: "Nothing was trained."
        self.log: Callable[[str], None] = lambda line: None
        self._when = 0.0
        self._finishing = self._answered = self._raised = False
        self._since = 0.0

    @property
    def received(self) -> bool:
        """Whether the run was asked to stop."""
        return self.number is not None

    @property
    def name(self) -> str:
        """Name of the signal."""
        return signal.Signals(self.number or signal.SIGTERM).name

    @property
    def patience(self) -> float:
        """Seconds that an answer may take: those of an iteration, as far as any was seen, and `ANSWER` more."""
        return ANSWER + 2 * self.longest if self.processes == 1 else LAUNCHER

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Receive signals here until the block ends; afterwards they do what they did before.

        Python gives signals to the main thread alone: a run in another thread never sees them.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wakeup = signal.set_wakeup_fd(-1)
        for number in WATCHED:
            _before[number] = signal.signal(number, self._note)
        try:
            with self._ended_by_force() if self.owns_process else nullcontext():
                yield
        finally:
            _as_before()
            signal.set_wakeup_fd(wakeup)

    @contextmanager
    def _ended_by_force(self) -> Iterator[None]:
        """Let a second thread end the process where the main thread does not answer, until the block ends."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(reader,), name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            _as_before()
            os.close(writer)  # which ends the thread
            thread.join()
            os.close(reader)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Remember a first signal, for `received` to be asked; what the block does has `patience` from then on."""
        self._since, self._answered, self._finishing = time.monotonic(), False, True
        try:
            yield
        finally:
            self._finishing = False

    def answer(self) -> None:
        """Note that the signal was noticed where the run can stop: there is no haste any more."""
        self._answered = True

    def _note(self, number: int, frame: object) -> None:
        """Note a signal in the main thread, as soon as it runs Python again."""
        now = time.monotonic()
        if self.number is None:
            self.number, self._when = number, now
            self._raised = not self._finishing
            if not self.owns_process:
                self._say_that_it_came(number)
        else:
            self._raised |= now - self._when > TWICE
        if self._raised:
            raise ImmediateStop(number)

    def _watch(self, reader: int) -> None:
        """Watch beside the main thread, and end the process when an end does not come about."""
        first, at_once_from, number, second = 0.0, math.inf, 0, False
        while True:
            come, _, _ = select.select([reader], [], [], 0.2 if number else None)
            received = [n for n in os.read(reader, 64) or (0,) if n in (0, *WATCHED)] if come else []
            if 0 in received:  # the pipe was closed
                return
            now = time.monotonic()
            if received:
                if not number:
                    first = now
                    self._say_that_it_came(received[0])
                number, second = received[-1], second or now - first > TWICE
            if not number:
                continue
            unseen = self.number is None  # by the main thread, which may hang
            at_once = second or self._raised or (unseen and not self._finishing)
            at_once_from = min(at_once_from, now) if at_once else math.inf
            late = not self._answered and now > max(first, self._since) + self.patience
            if late or now > at_once_from + UNWIND:
                self._end(number, now - first, at_once)

    def _say_that_it_came(self, number: int) -> None:
        if self._finishing and self.speaks:
            alone = "" if self.processes == 1 else " If another process of this run has ended, this one cannot finish."
            late = f", or {self.patience:.0f} s without an answer," if self.owns_process else ""
            self._write(
                f"{signal.Signals(number).name}: the run finishes what it is at and ends.{alone} A second signal{late} "
                f"ends it at once. {self.kept()}"
            )

    def _end(self, number: int, seconds: float, at_once: bool) -> None:
        why = "and could not be obeyed" if at_once else "and nothing answered, as when a reward hangs"
        name = signal.Signals(number).name
        line = f"{name} came {seconds:.0f} s ago {why}: the run ends here. {self.kept()}"
        self.log(line)
        self._write(line)
        os._exit(128 + number)

    def _write(self, line: str) -> None:
        """Write to stderr past Python's buffers, whose locks the main thread may hold; a notebook shows only those."""
        if not self.owns_process:
            with suppress(RuntimeError, OSError, ValueError):  # it was writing there when the signal came
                print(line, file=sys.stderr, flush=True)
            return
        shown = f"\x1b[?25h\n{line}\n" if os.isatty(2) else f"{line}\n"  # the live panel has hidden the cursor
        with suppress(OSError):
            os.write(2, shown.encode())
