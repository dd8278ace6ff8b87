"""What a user sees of work that takes long: one changing line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from diffrl import pulse

QUIET_SECONDS = 30.0
"""Seconds without a line after which one is written where there is no terminal, in the beginning."""
QUIET_SHARE = 0.05
"""The same as a share of the time since the beginning: a run of days writes a hundred such lines, not thousands."""


def duration(seconds: float) -> str:
    """Return seconds as 45s, 3m 05s or 2h 07m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


class Counts:
    """Listens to what a piece of work has done so far, and says it in a line."""

    def __init__(self, changed: Callable[[], None] = lambda: None):
        self._changed = changed
        self.phase = ""
        self.begin("", {})

    def begin(self, title: str, totals: Mapping[str, int]) -> None:
        """Begin another piece of work, counts at 0."""
        self._title, self._totals, self._last = title, totals, ("", "")  # the phase of the last count, and the count
        self._done: dict[str, int] = {}
        self._since = time.monotonic()

    def advance(self, what: str, count: int) -> None:
        """Add to what is done of it."""
        key = self.phase if what == pulse.NETWORK and self.phase in self._totals else what
        self._done[key] = self._done.get(key, 0) + count
        done, total = self._done[key], self._totals.get(key, 0)
        self._last = self.phase, f"{done:,}{f'/{total:,}' if done <= total else ''} {what}"
        self._changed()

    def line(self) -> str:
        """Describe progress, as `iteration 4: rollout, 412/632 network evaluations, 12s`; empty before any."""
        if not self._title:
            return ""
        where = f"{self._title}: {self.phase}" if self.phase else self._title
        counted_in, count = self._last
        here = count if self.phase in ("", counted_in) else ""  # another phase's count would be taken for this one's
        return ", ".join(filter(None, [where, here, duration(time.monotonic() - self._since)]))


class Seldom:
    """Says when a line is due, where lines stay: after `QUIET_SECONDS`, and later ever more seldom."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()

    def due(self) -> bool:
        """Return whether a line is due now; if so, it counts as written."""
        now = time.monotonic()
        if now - self._last < max(QUIET_SECONDS, QUIET_SHARE * (now - self._begun)):
            return False
        self._last = now
        return True

    def written(self) -> None:
        """Note that another line was written, which does as well."""
        self._last = time.monotonic()


@contextmanager
def watched(console: Console, title: str, kept: Callable[[], str] | None = None) -> Iterator[Counts]:
    """Show how far a long command is, and what an interruption leaves.

    Lines that stay go to stderr, so that a command's output may be piped.

    Args:
        console: of the command.
        title: what it does first.
        kept: what is kept when it is interrupted, and how to go on; None where that is said elsewhere.
    """
    where = console if console.is_terminal or console.quiet else Console(stderr=True)
    seldom = Seldom()

    def changed() -> None:
        if not where.is_terminal and seldom.due():
            where.print(counts.line(), highlight=False, markup=False, soft_wrap=True)

    counts = Counts(changed)
    counts.begin(title, {})
    spinner = Spinner("dots")

    def shown() -> Spinner:
        spinner.update(text=counts.line())
        return spinner

    live = Live(get_renderable=shown, console=where, transient=True, redirect_stdout=False, redirect_stderr=False)
    try:
        with pulse.listening(counts):
            if where.is_terminal and not where.quiet:
                with live:
                    yield counts
            else:
                yield counts
    except KeyboardInterrupt:
        if kept is not None:
            print(f"Interrupted. {kept()}", file=sys.stderr)
        raise
