"""How far a long piece of work is: stations tell it as they go, and whoever shows progress listens.

Like a log it passes through no signature: what a station computes is the same whether anybody watches, and nothing may
depend on what is told here. `diffrl.terminal.watch` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

NETWORK, DECODED, SCORED, RUNS = "network evaluations", "samples decoded", "scores", "runs"
"""What is counted. A network evaluation is one sample through the network; guidance is not counted apart."""


class Listener(Protocol):
    """Is told how far the work is.

    Args:
        phase: the present one; empty outside of any.
    """

    phase: str

    def begin(self, title: str, totals: Mapping[str, int]) -> None:
        """Begin another piece of work, counts at 0.

        Args:
            title: what the user sees.
            totals: how many of each there will be, by `NETWORK` and its like; network evaluations of a phase by the
                phase. What is unknown is left out.
        """

    def advance(self, what: str, count: int) -> None:
        """Add to what is done of it."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send this thread's progress to this listener and no other until the block ends."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def begin(title: str, totals: Mapping[str, int] | None = None) -> None:
    """Begin another piece of work, counts at 0."""
    if listener := _listener.get():
        listener.begin(title, totals or {})


def advance(what: str, count: int) -> None:
    """Add to what is done of it."""
    if listener := _listener.get():
        listener.advance(what, count)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name the phase of the work until the block ends."""
    listener = _listener.get()
    before = listener.phase if listener else ""
    if listener:
        listener.phase = name
    try:
        yield
    finally:
        if listener:
            listener.phase = before
