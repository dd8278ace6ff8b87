"""Questions of one batch side by side, on threads that hold up neither Ctrl-C nor the end of the program.

An executor's threads are waited for, by its `with` and by the interpreter at its end, so that a server that hangs would
keep a program alive. These are daemons, their sockets are shut when nobody wants their answers any more, and they never
sleep but on the event that ends them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from reward_models.serving.transport import Lane

T = TypeVar("T")


class ChatBatch(Generic[T]):
    """Questions under way; used once.

    Args:
        count: of questions.
        deadline: seconds from now until the batch ends, whatever is missing.
    """

    def __init__(self, count: int, deadline: float) -> None:
        self.deadline, self.until = deadline, time.monotonic() + deadline
        self.problems: dict[int, str] = {}
        """What went wrong at the last attempt of a question."""
        self.dead = threading.Event()
        """Set while the last that is known of the servers is that none answered."""
        self._answers: list[T | None] = [None] * count
        self._left = deque(range(count))
        self._free: list[Lane] = []
        self._error: BaseException | None = None
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._running = 0

    def run(self, ask: Callable[[int, Lane], T], lanes: Sequence[Lane]) -> tuple[list[T | None], list[Lane]]:
        """Ask all questions, one at a time through each lane.

        Args:
            ask: answers the question of this number. It calls `pause` between two attempts, and gives up if that says
                so; what it raises is raised here.
            lanes: each is given to one thread.

        Returns:
            The answers in order, None for those that the deadline cut off, and the lanes that are free again.
        """
        self._running = len(lanes)
        try:
            for lane in lanes:
                threading.Thread(target=self._work, args=(ask, lane), name="chat", daemon=True).start()
            with self._changed:
                while self._running and self._error is None and (left := self.until - time.monotonic()) > 0:
                    self._changed.wait(left)
        finally:  # also when the user interrupts: nobody waits for what is still under way
            self._stop.set()
            if self._running:
                for lane in lanes:
                    lane.cut()
        with self._changed:
            if self._error is not None:
                raise self._error
            return list(self._answers), list(self._free)

    def pause(self, seconds: float) -> bool:
        """Wait before another attempt; False, sooner, if there is to be none."""
        return time.monotonic() + seconds < self.until and not self._stop.wait(seconds)

    @property
    def over(self) -> bool:
        """Whether no further attempt may begin."""
        return self._stop.is_set() or time.monotonic() >= self.until

    def late(self, number: int) -> str:
        """Why a question has no answer that was not given in time, with what went wrong before."""
        before = self.problems.get(number)
        return f"no answer by the batch's deadline of {self.deadline:g} s" + (f"; before, {before}" if before else "")

    def _work(self, ask: Callable[[int, Lane], T], lane: Lane) -> None:
        try:
            while not self.over and (number := self._next()) is not None:
                answer = ask(number, lane)
                with self._changed:
                    self._answers[number] = answer
        except BaseException as error:  # raised again in the caller's thread
            self._error = error
        finally:
            with self._changed:
                self._running -= 1
                self._free.append(lane)
                self._changed.notify()

    def _next(self) -> int | None:
        with self._changed:
            return self._left.popleft() if self._left else None
