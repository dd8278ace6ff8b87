"""What a user watches while a run goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from diffrl import pulse
from diffrl.terminal.watch import Counts, Seldom, duration

BLOCKS = "▁▂▃▄▅▆▇█"
LINE_SECONDS = 10.0
WIDTH = 60


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return a curve in one line of text: values averaged into at most `width` columns, lowest to highest."""
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BLOCKS[min(7, int((value - low) / span * 8))] for value in means)


class Progress:
    """Shows iterations, the reward curve, the rate and what is left. Messages appear above it and stay.

    Within an iteration or an evaluation it shows how far that is: on a terminal always, elsewhere a line when there
    was none for long. These lines also go to `log`, so that they are kept where nobody can see them.
    """

    def __init__(self, console: Console, total: int, quiet: bool = False):
        self._console, self._total, self._quiet = console, total, quiet
        self._inside, self._seldom = Counts(self._advanced), Seldom()
        self._listening: AbstractContextManager[None] | None = None
        self._rewards: list[float] = []
        self._name = "reward"
        self._held_out: list[tuple[int, str]] = []
        self._done = self._first = 0
        self._started = time.monotonic()
        self._training_seconds = 0.0
        self._last_line = -LINE_SECONDS
        self._live: Live | None = None
        self.log: Callable[[str], None] = lambda line: None

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=4)
            self._live.__enter__()
        self._listening = pulse.listening(self._inside)
        self._listening.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._listening is not None:
            self._listening.__exit__(*error)
        self._inside.begin("", {})
        if self._live is not None:
            self._live.__exit__(*error)  # which shows it once more
            self._live = None

    def _advanced(self) -> None:
        if not self._quiet and self._seldom.due():
            self._line(f"{self._done:>5}/{self._total}  {self._inside.line()}")

    def resume(self, done: int, rewards: Sequence[float]) -> None:
        """Start from an iteration that an earlier process reached."""
        self._done = self._first = done
        self._rewards = list(rewards)

    def message(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, markup=False)

    def _line(self, text: str) -> None:
        """Write a line of the run's course into its log, and to the user where there is no panel."""
        self.log(text)
        if self._live is None:
            self.message(text)

    def held_out(self, iteration: int, text: str) -> None:
        """Show a held-out evaluation."""
        self._held_out.append((iteration, text))
        if not self._quiet:
            self._line(f"held-out after {iteration} iterations: {text}")
        self._refresh()

    def iteration(self, done: int, reward: float, seconds: float, name: str = "reward") -> None:
        """Show an iteration that is done; `seconds` is what it took, `name` what its reward is called."""
        self._done, self._name = done, name
        if math.isfinite(reward):  # no sample of the iteration could be scored
            self._rewards.append(reward)
        now = time.monotonic()
        if not self._training_seconds:  # loading and the evaluation before training say nothing of what is left
            self._started = now - seconds
        self._training_seconds += seconds
        if not self._quiet and (now - self._last_line > LINE_SECONDS or done == self._total):
            self._last_line = now
            self._seldom.written()
            curve = sparkline(self._rewards, 30)
            self._line(f"{done:>5}/{self._total}  {name} {reward:.3f}  {self._rate()}  {curve}")
        self._refresh()

    def _rate(self) -> str:
        count = self._done - self._first
        if count <= 0 or self._training_seconds <= 0:
            return ""
        each = self._training_seconds / count
        slow = f"{each:.1f} s/it" if each < 60 else f"{duration(each)}/it"
        rate = f"{1 / each:.2f} it/s" if each < 1 else slow
        wall = (time.monotonic() - self._started) / count
        return f"{rate}  ETA {duration((self._total - self._done) * wall)}"

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _panel(self) -> Panel:
        filled = round(WIDTH * self._done / max(1, self._total))
        table = Table.grid(padding=(0, 2))
        table.add_row("iteration", f"{'━' * filled}{'╌' * (WIDTH - filled)}  {self._done}/{self._total}")
        if self._rewards:
            low, high = min(self._rewards), max(self._rewards)
            table.add_row(self._name, Text(sparkline(self._rewards), style="green"))
            table.add_row("", f"now {self._rewards[-1]:.3f}   lowest {low:.3f}   highest {high:.3f}   {self._rate()}")
        if line := self._inside.line():
            table.add_row("now", line)
        for iteration, text in self._held_out[-4:]:
            table.add_row("held-out", f"after {iteration}: {text}")
        return Panel(Group(table), title="diffrl", expand=False)
