"""What a comparison has found: the curve of each run, and what the runs of a configuration have in common.

Costs are those of training iterations alone; evaluations and checkpoints are left out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from diffrl.errors import ConfigError, DiffrlError
from diffrl.tracking.metrics import read_metrics

STATE = "state.json"
COSTS = ("evaluations", "seconds")


@dataclass(frozen=True)
class Point:
    """One held-out evaluation.

    Args:
        iteration: of training, after which it was made.
        evaluations: network evaluations spent on training until then; those with a gradient count twice.
        seconds: wall seconds spent on training until then.
        score: the metric.
    """

    iteration: int
    evaluations: float
    seconds: float
    score: float


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Args:
        number: of the seed within the comparison, from 0.
        curve: its evaluations, the one before training first.
        iterations: of training.
        updates: of the optimiser.
        peak_memory_bytes: the most that its process held.
    """

    number: int
    curve: tuple[Point, ...]
    iterations: int
    updates: int
    peak_memory_bytes: int

    @property
    def gain(self) -> float:
        """Score after training less the score before."""
        return self.curve[-1].score - self.curve[0].score

    def cost_to(self, target: float, cost: str) -> float | None:
        """Evaluations or seconds when the score first reached `target`, on straight lines between evaluations."""
        if self.curve[0].score >= target:
            return 0.0
        for before, after in pairwise(self.curve):
            if after.score >= target:
                share = (target - before.score) / (after.score - before.score)
                start, end = getattr(before, cost), getattr(after, cost)
                return float(start + share * (end - start))
        return None


@dataclass(frozen=True)
class Reached:
    """When the runs of a configuration reached a score.

    Args:
        cost: mean over the runs; None if one of them did not get there.
        missed: runs that did not.
        runs: all.
    """

    cost: float | None
    missed: int
    runs: int


@dataclass(frozen=True)
class Arm:
    """A configuration with its finished runs.

    Args:
        label: its name in table and figure.
        folder: of its runs, within the comparison's.
        planned: runs that there will be.
        runs: those that have finished, by seed.
        planned_as: its entry of state.json.
    """

    label: str
    folder: str
    planned: int
    runs: tuple[RunResult, ...]
    planned_as: Mapping[str, Any]

    @property
    def before(self) -> float:
        """Mean score before training."""
        return self.mean(lambda run: run.curve[0].score)

    @property
    def after(self) -> float:
        """Mean score after training."""
        return self.mean(lambda run: run.curve[-1].score)

    @property
    def gain(self) -> float:
        """Mean gain of the runs."""
        return self.mean(lambda run: run.gain)

    @property
    def spread(self) -> float:
        """Best score after training less the worst."""
        scores = [run.curve[-1].score for run in self.runs]
        return max(scores) - min(scores)

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval for the mean score after training; None for a single run."""
        return t_half_width([run.curve[-1].score for run in self.runs])

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that any of the runs held."""
        return max(run.peak_memory_bytes for run in self.runs)

    def mean(self, value: Callable[[RunResult], float]) -> float:
        """Mean of a number over the runs."""
        return statistics.fmean(map(value, self.runs))

    def cost(self, cost: str) -> float:
        """Mean evaluations or seconds of a run."""
        return self.mean(lambda run: getattr(run.curve[-1], cost))

    def cost_to(self, target: float, cost: str) -> Reached:
        """Evaluations or seconds to a score; a mean over only the runs that got there would flatter, so there is none.

        Args:
            target: the score.
            cost: "evaluations" or "seconds".
        """
        found = [run.cost_to(target, cost) for run in self.runs]
        got_there = [value for value in found if value is not None]
        mean = statistics.fmean(got_there) if len(got_there) == len(found) else None
        return Reached(mean, len(found) - len(got_there), len(found))

    def band(self, cost: str) -> tuple[list[float], list[float], list[float], list[float]]:
        """Mean cost, then mean, lowest and highest score, after each iteration that every run was evaluated after."""
        curves = [{point.iteration: point for point in run.curve} for run in self.runs]
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        points = [[curve[iteration] for curve in curves] for iteration in shared]
        scores = [[point.score for point in column] for column in points]
        return (
            [statistics.fmean(getattr(point, cost) for point in column) for column in points],
            [statistics.fmean(column) for column in scores],
            [min(column) for column in scores],
            [max(column) for column in scores],
        )


@dataclass(frozen=True)
class Comparison:
    """All that a comparison's directory holds, read for one metric.

    Args:
        metric: held-out reward that is compared.
        budget: kind and amount that every run was given.
        arms: the configurations, in the order in which they were asked for.
        notes: what a reader of the numbers has to know.
    """

    metric: str
    budget: Mapping[str, Any]
    arms: tuple[Arm, ...]
    notes: tuple[str, ...]


def t_half_width(values: Sequence[float]) -> float | None:
    """Half the width of Student's 95 % interval for a mean, t(0.975, n - 1) * s / sqrt(n); None for one value."""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, 0.975))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def read_state(directory: Path) -> dict[str, Any]:
    """The plan that a comparison keeps to.

    Raises:
        ConfigError: there is none.
    """
    try:
        return dict(json.loads((directory / STATE).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ConfigError(
            f"A comparison is a directory with a {STATE} that `diffrl compare` made. Got {str(directory)!r}."
        ) from error
    except ValueError as error:
        raise ConfigError(f"{directory / STATE} is damaged: {error}. Compare in a new directory.") from error


def collect(directory: str | Path, metric: str | None = None) -> Comparison:
    """Read a comparison, finished or not.

    Args:
        directory: that `diffrl compare` wrote.
        metric: held-out reward, or part of one such as "shapes/strict"; None = the first of the first configuration.

    Raises:
        DiffrlError: no comparison there, or a run without that metric.
    """
    directory = Path(directory)
    state = read_state(directory)
    if not state["configurations"]:
        raise ConfigError(
            f"There is nothing to report in {directory}: no configuration could be trained. See its logs."
        )
    metric = metric or default_metric(state)
    arms, notes = [], []
    for entry in state["configurations"]:
        label, runs, unfinished = entry["label"], [], []
        for number in range(state["seeds"]):
            path = directory / entry["folder"] / f"seed-{number}"
            if not (path / "summary.json").is_file():
                unfinished.append(str(number))
                continue
            run, unscored = read_run(path, number, metric)
            if unscored:
                notes.append(f"{label}: seed {number} has no score in {unscored} of its evaluations.")
            runs.append(run)
        if unfinished:
            which = ", ".join(unfinished)
            notes.append(
                f"{label}: {len(unfinished)} of {state['seeds']} runs not finished and left out (seed {which})."
            )
        arms.append(Arm(label, entry["folder"], state["seeds"], tuple(runs), entry))
    return Comparison(metric, state["budget"], tuple(arms), tuple(notes))


def default_metric(state: Mapping[str, Any]) -> str:
    """The first held-out reward of the first configuration."""
    first = state["configurations"][0]["config"]["eval"]["rewards"][0]
    return str(first.get("label") or first["name"])


def read_run(path: Path, number: int, metric: str) -> tuple[RunResult, int]:
    """A finished run, and how many of its evaluations have no score.

    Raises:
        DiffrlError: the run does not have the metric, or not what its iterations cost.
    """
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    column = f"held_out/{metric}"
    rows = [row for row in read_metrics(path / "metrics.jsonl") if column in row]
    if not rows:
        raise ConfigError(
            f"The metric must be a held-out reward of every run. Got {metric!r}, which {path} has not. Add it to "
            "eval.rewards, or choose another with --metric."
        )
    if any(f"cost/{cost}" not in row for row in rows for cost in COSTS):
        raise DiffrlError(
            f"A run that is compared must say what its iterations cost (cost/evaluations, cost/seconds). {path} does "
            "not: an older version made it. Train it again."
        )
    curve = tuple(
        Point(row["iteration"], float(row["cost/evaluations"]), float(row["cost/seconds"]), float(row[column]))
        for row in rows
        if row[column] is not None
    )
    if not curve:
        raise DiffrlError(f"A run that is compared must have a score. None of {path}'s held-out samples got one.")
    result = RunResult(number, curve, summary["iterations"], summary["updates"], summary["peak_memory_bytes"])
    return result, len(rows) - len(curve)
