"""What all the scores amount to: statistics, the best and the worst, failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reward_models.scoring.captions import ORDER
from reward_models.scoring.choices import Loaded
from reward_models.scoring.output import total_of
from reward_models.scoring.run import Row

TOTAL = "total"
EXTREMES = 3
"""How many of the best and of the worst are shown."""
NOWHERE = "nowhere"
"""In the place of where a prompt comes from, of images without."""
STATISTICS = ("n", "mean", "std", "min", "median", "max", "failed")


@dataclass
class Series:
    """All scores of one reward."""

    label: str  # of the reward, or "total"
    higher_is_better: bool = True  # see the scorer's spec
    version: str | None = None  # of the scorer; None for the total
    remote: bool = False  # a server computed it, whose weights cannot be seen from here
    values: list[float] = field(default_factory=list)  # NaN where it failed
    cached: int = 0  # how many were known before
    # the first different messages, each with the file that it was first said of
    errors: list[tuple[str, str]] = field(default_factory=list)
    failed: int = 0  # how many failed

    def add(self, name: str, value: float, error: str | None, cached: bool) -> None:
        """Add a sample's score."""
        self.values.append(value)
        self.cached += cached
        if error is not None:
            self.failed += 1
            if len(self.errors) < EXTREMES and error not in (text for _, text in self.errors):
                self.errors.append((name, error))

    @property
    def array(self) -> NDArray[np.float64]:
        """(N,) with NaN where it failed."""
        return np.array(self.values, dtype=np.float64)

    def statistics(self) -> dict[str, float | int | None]:
        """Return n scored, mean, standard deviation (of the sample, n - 1), min, median, max and failed."""
        good = self.array[np.isfinite(self.array)]
        made: dict[str, float | int | None] = {"n": len(good)}
        if len(good) == 0:
            made |= dict.fromkeys(("mean", "std", "min", "median", "max"))
        else:
            std = float(good.std(ddof=1)) if len(good) > 1 else 0.0
            made |= {"mean": float(good.mean()), "std": std, "min": float(good.min())}
            made |= {"median": float(np.median(good)), "max": float(good.max())}
        return {**made, "failed": self.failed}

    def ranked(self) -> list[int]:
        """Return rows that have a score, best first; equal ones in their order."""
        sign = -1 if self.higher_is_better else 1
        rows = [row for row, value in enumerate(self.values) if math.isfinite(value)]
        return sorted(rows, key=lambda row: sign * self.values[row])


class Summary:
    """Collects rows; keeps a name and a number per reward of each."""

    def __init__(self, rewards: Sequence[Loaded]):
        self._rewards = rewards
        self.names: list[str] = []
        specs = [(reward.label, reward.scorer.spec) for reward in rewards]
        self.series = [Series(label, spec.higher_is_better, spec.version, spec.remote) for label, spec in specs]
        if any(reward.settings.weight for reward in rewards):
            self.series.append(Series(TOTAL))
        self.failed_files = 0
        self._uses_prompts = any(reward.scorer.spec.uses_prompt for reward in rewards)
        self._prompts_from: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        """Add a row."""
        self.names.append(row.item.name)
        if self._uses_prompts:
            source = row.item.prompt_from if row.item.prompt is not None else None
            self._prompts_from[source or NOWHERE] += 1
        self.failed_files += any(not score.ok for score in row.scores.values())
        for series in self.series[: len(self._rewards)]:
            score = row.scores[series.label]
            series.add(row.item.name, score.raw, score.error, series.label in row.cached)
        total = total_of(row, self._rewards)
        if total is not None:
            error = None if math.isfinite(total) else "a reward of the sum failed"
            self.series[-1].add(row.item.name, total, error, cached=False)

    @property
    def nothing_scored(self) -> bool:
        """Whether every reward failed for every sample."""
        return all(series.failed == len(self.names) for series in self.series[: len(self._rewards)])

    def extremes(self, series: Series) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Return the best samples, best first, and the worst, worst first, with their scores; none is both."""
        ranked = series.ranked()
        count = min(EXTREMES, len(ranked) // 2) or len(ranked)
        named = [(self.names[row], series.values[row]) for row in ranked]
        return named[:count], named[: -count - 1 : -1] if len(ranked) > 1 else []

    def as_json(self) -> dict[str, Any]:
        """Return everything, for machines."""
        rewards = {}
        for series in self.series:
            best, worst = self.extremes(series)
            rewards[series.label] = {
                **series.statistics(),
                "version": series.version,
                "cached": series.cached,
                "higher_is_better": series.higher_is_better,
                "best": [{"file": name, "raw": value} for name, value in best],
                "worst": [{"file": name, "raw": value} for name, value in worst],
                "errors": [{"file": name, "error": error} for name, error in series.errors],
            }
        files = {"files": len(self.names), "failed_files": self.failed_files}
        return {**files, "prompts_from": dict(self._prompts_from), "rewards": rewards}

    def show(self, console: Console) -> None:
        """Print a table of statistics, and the best and the worst of each reward."""
        count = f"{len(self.names)} file{'' if len(self.names) == 1 else 's'}"
        table = Table(title=count, title_justify="left", box=None, pad_edge=False)
        table.add_column("reward", style="bold")
        for name in STATISTICS:
            table.add_column(name, justify="right")
        for series in self.series:
            cells = ["–" if value is None else _short(value) for value in series.statistics().values()]
            label = Text(series.label + ("" if series.higher_is_better else " (lower is better)"))
            table.add_row(label, *cells[:-1], Text(cells[-1], style="red" if series.failed else "dim"))
        console.print(table)
        for series in self.series:
            for title, entries in zip(("best", "worst"), self.extremes(series), strict=True):
                line = Text(f"{title} {series.label}: ", style="dim")
                line.append(", ".join(f"{name} ({_short(value)})" for name, value in entries), style="default")
                if entries:
                    console.print(line, soft_wrap=True)

    def notes(self) -> list[str]:
        """Return where prompts come from, and a line for each reward whose server may not give cached scores now."""
        sources = ", ".join(f"{count} from {name}" for name, count in self._prompts_from.items())
        lines = [f"Prompts: {sources}. The first that is there counts: {ORDER}."] if sources else []
        return lines + [
            f"{series.cached} scores of {series.label} are from the cache. What a server computes with cannot be seen "
            "from here: if its weights were changed, score with --no-cache."
            for series in self.series
            if series.remote and series.cached
        ]

    def failures(self) -> list[str]:
        """Return a line for each reward that failed on something."""
        lines = []
        for series in self.series[: len(self._rewards)]:
            if series.failed:
                named = [e if e.startswith(name) else f"{name}: {e}" for name, e in series.errors]
                text = " ".join(one if one.endswith((".", "!", "?")) else f"{one}." for one in named)
                more = " ..." if series.failed > len(series.errors) else ""
                lines.append(f"{series.label} failed for {series.failed} of {len(self.names)} files. {text}{more}")
        return lines


def _short(value: float) -> str:
    """Return four digits; large numbers in full, so that columns stay narrow."""
    if isinstance(value, int) or 1e4 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}"
