"""What a comparison has measured: the curve of each run, and what the runs of a configuration have in common.

Costs are those of training iterations alone; evaluations and checkpoints are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffrl.cost.meter import PURPOSES
from diffrl.cost.prices import EQUAL, Prices
from diffrl.errors import ConfigError, DiffrlError
from diffrl.statistics import Estimate, mean_estimate
from diffrl.studies.compare.arguments import Budget
from diffrl.studies.compare.curves import Point, Reached, cost_of_run, cost_to
from diffrl.studies.compare.pairing import report_source, unpaired
from diffrl.studies.compare.plan import Planned, Record
from diffrl.studies.compare.reported import ALIGNED, read_reported
from diffrl.studies.compare.stored import COSTS, Priced, Summary, read_rows_of, read_stored, require_fit


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    number: int  # of the seed within the comparison, from 0
    curve: tuple[Point, ...]  # its evaluations, the one before training first
    iterations: int  # of training
    updates: int  # of the optimiser
    peak_memory_bytes: int  # the most that its process held
    # (weights, guidance) -> the metric on the report split, see `reported.Reported`
    reported: Mapping[tuple[str, float], float] = field(default_factory=dict)
    # the other held-out rewards there, and diversity and distance to the base if they were measured; of the aligned
    # weights, with the guidance of its evaluations
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """Return score after training less the score before, on the curve's prompts."""
        return self.curve[-1].score - self.curve[0].score

    def cost_to(self, target: float, cost: str) -> float | None:
        """Return the cost of a score on the run's monotone curve; None if it is not reached."""
        return cost_of_run(self.curve, target, cost)


@dataclass(frozen=True)
class Arm:
    """A configuration with its finished runs."""

    plan: Planned  # its entry of state.json
    planned: int  # runs that there will be
    runs: tuple[RunResult, ...]  # those that have finished, by seed

    @property
    def label(self) -> str:
        """Return name in table and figure."""
        return self.plan.label

    @property
    def guidance_scale(self) -> float:
        """Guidance of its held-out evaluations."""
        return self.plan.config.eval.guidance_scale

    @property
    def report(self) -> str | None:
        """Return source of the prompts of its final number; None without a world."""
        return report_source(self.plan.settings)

    @property
    def before(self) -> float:
        """Return mean score before training."""
        return self.mean(lambda run: run.curve[0].score)

    @property
    def after(self) -> Estimate:
        """Return score after training, on the prompts of the curve."""
        return mean_estimate([run.curve[-1].score for run in self.runs])

    @property
    def gain(self) -> float:
        """Return mean gain of the runs."""
        return self.mean(lambda run: run.gain)

    @property
    def spread(self) -> float:
        """Return best score after training less the worst."""
        scores = [run.curve[-1].score for run in self.runs]
        return max(scores) - min(scores)

    @property
    def peak_memory_bytes(self) -> int:
        """Return the most memory that any of the runs held."""
        return max(run.peak_memory_bytes for run in self.runs)

    def mean(self, value: Callable[[RunResult], float]) -> float:
        """Return mean of a number over the runs."""
        return statistics.fmean(map(value, self.runs))

    def cost(self, cost: str) -> float:
        """Return mean evaluations or seconds of a run."""
        return self.mean(lambda run: getattr(run.curve[-1], cost))

    def cost_to(self, target: float, cost: str) -> Reached:
        """Return evaluations or seconds to a score, see `curves.cost_to`."""
        return cost_to([run.curve for run in self.runs], target, cost)

    def on_report(self, weights: str, guidance_scale: float) -> Estimate | None:
        """Return the metric on the report split over runs of these weights ("aligned", "base"); None if none was."""
        key = (weights, guidance_scale)
        values = [run.reported[key] for run in self.runs if key in run.reported]
        return mean_estimate(values) if values else None

    def band(self, cost: str) -> tuple[list[float], list[Estimate]]:
        """Return mean cost and score, both as measured, after each iteration that every run was evaluated after."""
        curves = [{point.iteration: point for point in run.curve} for run in self.runs]
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        points = [[curve[iteration] for curve in curves] for iteration in shared]
        costs = [statistics.fmean(getattr(point, cost) for point in column) for column in points]
        return costs, [mean_estimate([point.score for point in column]) for column in points]


@dataclass(frozen=True)
class Comparison:
    """All that a comparison's directory holds, read for one metric."""

    metric: str  # held-out reward that is compared
    budget: Budget  # kind and amount that every run was given
    arms: tuple[Arm, ...]  # the configurations, in the order in which they were asked for
    notes: tuple[str, ...]  # what a reader of the numbers has to know
    prices: Prices = EQUAL  # that evaluations are priced by
    paired: bool = True  # whether runs of one seed are pairs

    @property
    def final(self) -> str | None:
        """Return source of the prompts of the final numbers: the report split, if the runs have their numbers there.

        None if no run has one, and where there is no such split: the curve's last point stands in.
        """
        runs = [(run, arm) for arm in self.arms for run in arm.runs]
        measured = all((ALIGNED, arm.guidance_scale) in run.reported for run, arm in runs)
        return self.arms[0].report if runs and measured else None

    def score(self, arm: Arm, run: RunResult) -> float:
        """Return the final number of a run of an arm, see `final`."""
        return run.curve[-1].score if self.final is None else run.reported[ALIGNED, arm.guidance_scale]

    def mean_score(self, arm: Arm) -> Estimate:
        """Return the final number of an arm over its seeds, at least one."""
        return mean_estimate([self.score(arm, run) for run in arm.runs])


def collect(directory: str | Path, metric: str | None = None, prices: Prices | None = None) -> Comparison:
    """Read a comparison, finished or not.

    Args:
        directory: that `diffrl compare` wrote.
        metric: held-out reward, or part of one such as "shapes/strict"; None = the first of the first configuration.
        prices: that evaluations are priced by; None = those of its budget.

    Raises:
        DiffrlError: no comparison there, or a run without that metric.
    """
    directory = Path(directory)
    record = Record.read(directory)
    if not record.configurations:
        raise ConfigError(
            f"There is nothing to report in {directory}: no configuration could be trained. See its logs."
        )
    first = record.configurations[0].config.eval.rewards[0]
    metric, prices = metric or first.label or first.name, prices or record.prices
    arms, notes = [], list(record.input_changes or [])
    for planned in record.configurations:
        label, runs, unfinished = planned.label, [], []
        for number in range(record.seeds):
            path = directory / planned.folder / f"seed-{number}"
            if not (path / "summary.json").is_file():
                unfinished.append(str(number))
                continue
            run, unscored = read_run(path, number, metric, planned.settings_of(number), prices)
            if unscored:
                notes.append(f"{label}: seed {number} has no score in {unscored} of its evaluations.")
            runs.append(run)
        if unfinished:
            which = ", ".join(unfinished)
            notes.append(f"{label}: {len(unfinished)} of {record.seeds} runs not finished and left out (seed {which}).")
        arms.append(Arm(planned, record.seeds, tuple(runs)))
    arms, unmeasured = only_measured(arms)
    notes += unmeasured
    apart = unpaired({arm.label: arm.plan.settings for arm in arms}, metric)
    notes += [f"Runs of one seed are no pairs, and are not subtracted: {reason}" for reason in apart]
    if prices.name != record.prices.name:
        notes.append(
            f"Costs are by other prices than the budget's, {record.prices.name}: runs are not of equal cost by them."
        )
    return Comparison(metric, record.budget, tuple(arms), tuple(notes), prices, not apart)


def only_measured(arms: Sequence[Arm]) -> tuple[list[Arm], list[str]]:
    """Return where some runs have their number on the report split, those that have none are left out, and named.

    They were interrupted, or measured otherwise. Where no run has one, all are kept: the curve's prompts stand in.
    """

    def measured(arm: Arm, run: RunResult) -> bool:
        return (ALIGNED, arm.guidance_scale) in run.reported

    if not any(measured(arm, run) for arm in arms for run in arm.runs):
        return list(arms), []
    kept, notes = [], []
    for arm in arms:
        left = [str(run.number) for run in arm.runs if not measured(arm, run)]
        if left:
            notes.append(
                f"{arm.label}: not measured on {arm.report or 'a report split'} and left out: seed {', '.join(left)}."
            )
        kept.append(replace(arm, runs=tuple(run for run in arm.runs if measured(arm, run))))
    return kept, notes


def read_run(
    path: Path, number: int, metric: str, config: Mapping[str, Any], prices: Prices = EQUAL
) -> tuple[RunResult, int]:
    """Return a finished run, and how many of its evaluations have no score.

    Raises:
        DiffrlError: the run does not have the metric, or not what its iterations cost; or what it explores in has no
            price.
    """
    summary = read_stored(path / "summary.json", Summary)
    column = f"held_out/{metric}"
    every = read_rows_of(path)
    rows = [row for row in every if column in row]
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
    spent = priced(every, config, prices)
    curve = tuple(
        Point(row["iteration"], spent[row["iteration"]], float(row["cost/seconds"]), float(row[column]))
        for row in rows
        if row[column] is not None
    )
    if not curve:
        raise DiffrlError(f"A run that is compared must have a score. None of {path}'s held-out samples got one.")
    reported = {(one.weights, one.guidance_scale): one for one in read_reported(path, config, summary.iterations)}
    finals = {key: one.means[metric] for key, one in reported.items() if metric in one.means}
    others: dict[str, float] = {}
    if last := reported.get((ALIGNED, float(config["eval"].get("guidance_scale", 1.0)))):
        others = {name: value for name, value in last.means.items() if "/" not in name and name != metric}
        others |= last.variety or {}
    result = RunResult(number, curve, summary.iterations, summary.updates, summary.peak_memory_bytes, finals, others)
    return result, len(rows) - len(curve)


def priced(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], prices: Prices) -> dict[int, float]:
    """Return what training had cost after each iteration, by a price table.

    Returns:
        Iteration -> cost. With `EQUAL` it is the run's own count.

    Raises:
        ConfigError: the table has no price for the precision that explores.
    """
    if prices.name == EQUAL.name:
        return {row["iteration"]: float(row["cost/evaluations"]) for row in rows if "cost/evaluations" in row}
    settings = require_fit(Priced, config, "The plan of a comparison")
    total, counts = {}, dict.fromkeys(PURPOSES, 0.0)
    for row in rows:
        for name in PURPOSES:
            counts[name] += row.get(f"evaluations/{name}", 0)
        total[row["iteration"]] = prices.cost(
            counts, settings.rollout.low_precision, settings.train.gradient_checkpointing
        )
    return total
