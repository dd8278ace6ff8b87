"""The table above a comparison: each column's mean, and its paired difference from a baseline with an interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diffrl.gallery.columns import Column
from diffrl.gallery.compare import Row, Summary, summarise
from diffrl.gallery.numbers import improvement
from diffrl.gallery.progress import recipe
from diffrl.gallery.records import Source
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import track_of
from diffrl.statistics import Estimate, clustered_estimate


@dataclass(frozen=True)
class ScoreRow:
    """One column."""

    column: Column
    index: int  # of it among them
    count: int  # samples with a value, of those that stand beside another
    mean: float | None  # of them; None without any
    # paired difference from the baseline, its interval over prompts; None of the baseline itself, and where nothing
    # is paired
    change: Estimate | None
    counts: Summary  # of what is better and worse than in the baseline
    # of the network, what training had cost by then; None of folders and where it is not known
    evaluations: float | None = None
    seconds: float | None = None  # of training by then
    # of the samples that the difference is of, in this column and in the baseline; None where there is none
    means: tuple[float, float] | None = None

    @property
    def resolved(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.change is not None and self.change.resolved


@dataclass(frozen=True)
class Best:
    """The column with the best mean."""

    column: Column
    next: Column  # the next best
    mean: float  # of the best one
    change: Estimate  # paired difference of the best from the next, its interval over prompts
    places: tuple[int, int]  # of both among the columns


def paired_change(rows: Sequence[Row]) -> Estimate | None:
    """Return the mean change of rows between their compared columns, its interval over prompts; None if no row has one.

    Samples of one prompt go together; the same words about another image to edit are another prompt. The interval is
    of these weights: what another seed of training would give is what `diffrl compare` measures.
    """
    paired = [(change, row.asked) for row in rows if (change := row.change) is not None]
    return clustered_estimate(*zip(*paired, strict=True)) if paired else None


def paired_means(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the means of the compared column and of its baseline over the rows, at least one, with both values."""
    paired = [(row.value, row.values[row.pair[1]]) for row in rows if row.change is not None]
    first, second = ([value for value in side if value is not None] for side in zip(*paired, strict=True))
    return sum(first) / len(first), sum(second) / len(second)


def score_table(columns: Sequence[Column], rows: Sequence[Row], baseline: int, lower: bool = False) -> list[ScoreRow]:
    """Return one row a column, in the columns' order."""
    table = []
    for index, column in enumerate(columns):
        versus = [row._replace(pair=(index, baseline)) for row in rows]
        change = paired_change(versus) if index != baseline else None
        values = [value for row in rows if (value := row.values[index]) is not None]
        mean = sum(values) / len(values) if values else None
        counts, means = summarise(versus, lower), paired_means(versus) if change else None
        table.append(ScoreRow(column, index, len(values), mean, change, counts, *spent(column), means))
    return table


def best_column(columns: Sequence[Column], rows: Sequence[Row], table: Sequence[ScoreRow], lower: bool) -> Best | None:
    """Return the best column of three or more against the next best; None of fewer, and where nothing is paired."""
    known = sorted((improvement(-one.mean, lower), one.index) for one in table if one.mean is not None)
    if len(known) < 3:
        return None
    first, second = (index for _, index in known[:2])
    change = paired_change([row._replace(pair=(first, second)) for row in rows])
    return change and Best(columns[first], columns[second], table[first].mean or 0.0, change, (first, second))


def seeds_of(sources: Sequence[Source]) -> str:
    """Say of how many seeds of how many configurations runs are; "" where no two are seeds of one configuration.

    Seeds are no rivals: which of them is the best says nothing of configurations, as `diffrl compare` does.
    """
    runs = [recipe(one) if isinstance(one, RunSource) else None for one in dict.fromkeys(sources)]
    known = [one for one in runs if one is not None]
    count, seeds = len(runs), Counter(text for text, _ in known)
    if len(known) < count or len(set(known)) < count or count == len(seeds):
        return ""
    if len(seeds) == 1:
        return f"{count} seeds of one configuration"
    each = f"{count // len(seeds)} seeds of each" if len(set(seeds.values())) == 1 else "seeds"
    return f"{count} runs, {each} of {len(seeds)} configurations"


def spent(column: Column) -> tuple[float | None, float | None]:
    """Return evaluations and seconds of training until a held-out evaluation of a run; None for all else."""
    if not isinstance(column.source, RunSource) or column.state.stage != "eval":
        return None, None
    track = track_of(column.source)
    iterations = track.along("iteration")
    if column.state.iteration not in iterations:
        return None, None
    row = iterations.index(column.state.iteration)
    evaluations, seconds = (track.along(f"cost/{name}")[row] for name in ("evaluations", "seconds"))
    return evaluations, seconds
