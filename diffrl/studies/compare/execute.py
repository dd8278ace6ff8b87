"""Compare configurations at equal budget, over several seeds.

What was finished before is kept, what was begun goes on, and a run that fails does not keep the others from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from diffrl.config import Config
from diffrl.config.schema import RunSettings
from diffrl.cost.prices import EQUAL, Prices, parse_prices
from diffrl.display import NOTHING, console_table
from diffrl.errors import ConfigError, DiffrlError
from diffrl.run.directory import locked
from diffrl.statistics import ALPHA, POWER, sd_interval
from diffrl.studies.compare.arguments import Budget, Candidate, load_candidates, parse_budget, parse_candidates
from diffrl.studies.compare.pairs import measured_sd, seeds_to_detect
from diffrl.studies.compare.plan import (
    Planned,
    Record,
    earlier_changes,
    earlier_plan,
    plan_candidate,
    require_inputs_alike,
)
from diffrl.studies.compare.processes import Processes, cores
from diffrl.studies.compare.results import collect
from diffrl.studies.compare.stored import STATE
from diffrl.studies.compare.tables import print_report, write_report
from diffrl.studies.compare.training import Work, time_all, train_all
from diffrl.studies.requests import CompareRequest
from diffrl.terminal.watch import watched
from diffrl.training.inputs import digest_named

SEEDS = 3
PLAN = ("configuration", "iterations", "of", "= evaluations", "seconds", "held-out")


def compare(request: CompareRequest, console: Console, dry_run: bool = False) -> None:
    """Train what is not trained yet, measure it on the report split and report.

    Args:
        request: what to compare.
        console: where to show.
        dry_run: only show the plan; nothing is timed, trained or written.

    Raises:
        ConfigError: something is wrong with the request, before anything is trained.
        DiffrlError: some runs failed; the others were seen through and reported.
    """
    budget, candidates = parse_budget(request.budget), parse_candidates(request.configs or ())
    prices = parse_prices(request.prices or EQUAL.name)
    configs = load_candidates(candidates, request.metric)
    most = runs_at_once(request.jobs, budget, configs)
    seeds = choose_seeds(request, console)
    at_once = min(most, len(candidates) * seeds)
    accept, processes = request.accept_changed_inputs, Processes(at_once)
    work = Work(
        request.out, console, processes, tuple(request.guidance or ()), request.variety, accept, request.no_report
    )
    asked = (candidates, configs, budget, request.evals, prices)
    if dry_run:
        earlier = earlier_plan(request.out, *asked, seeds, request.own_noise)
        seconds = {planned.label: planned.iteration_seconds for planned in earlier}
        untimed = [c.label for c in candidates if budget.kind == "seconds" and c.label not in seconds]
        known = [pair for pair in zip(candidates, configs, strict=True) if pair[0].label not in untimed]
        print_plan(console, _plan(known, budget, request, prices, seconds, earlier), untimed, seeds)
        return
    earlier_plan(request.out, *asked, seeds, request.own_noise)  # refuse before the directory is touched
    inputs = {candidate.label: digest_named(config) for candidate, config in zip(candidates, configs, strict=True)}
    changes = require_inputs_alike(request.out, inputs, accept)
    for line in changes:
        work.report(line)
    with locked(request.out):
        earlier = earlier_plan(request.out, *asked, seeds, request.own_noise)
        record = Record(
            budget=budget,
            evals=request.evals,
            seeds=seeds,
            prices=prices,
            inputs={**inputs},
            input_changes=earlier_changes(request.out) + changes,
            configurations=earlier,
        )
        record.save(request.out)
        pairs = list(zip(candidates, configs, strict=True))
        seconds = time_all(work, pairs, earlier) if budget.kind == "seconds" else {}
        if budget.kind == "seconds":
            pairs = [pair for pair in pairs if pair[0].label in seconds]
        planned = _plan(pairs, budget, request, prices, seconds, earlier)
        record = record.model_copy(update={"configurations": planned})
        record.save(request.out)
        print_plan(console, planned, [], seeds)
        if at_once > 1:
            work.report(f"{at_once} runs at once: seconds are those of runs beside each other.")
        finished = f"Finished runs and checkpoints are kept in {request.out}. The same command goes on."
        with watched(console, "training", lambda: finished):
            train_all(work, record)
    if planned:
        show_report(request.out, console, request.metric, request.target)
    if work.failures:
        count = len(work.failures)
        raise DiffrlError("\n  - ".join([f"{count} run{'s' * (count > 1)} failed:", *work.failures]))


def show_report(
    out: Path,
    console: Console,
    metric: str | None = None,
    target: float = 0.6,
    detect: float | None = None,
    sd: float | None = None,
    prices: str | None = None,
) -> None:
    """Read a comparison, write its table and figures and show the table.

    Args:
        out: directory of the comparison.
        console: where to show.
        metric: held-out reward that is compared; None = the first of the first configuration.
        target: score whose cost is reported.
        detect: difference of the metric; how many seeds would resolve it is told.
        sd: of paired differences, for `detect`; None = the measured one.
        prices: that costs are told by; None = those of its budget.

    Raises:
        DiffrlError: no comparison there, or a run without the metric.
    """
    comparison = collect(out, metric, None if prices is None else parse_prices(prices))
    write_report(comparison, out, target)
    print_report(console, comparison, target, out)
    if detect is not None:
        seeds_for(out, metric, detect, sd, console)


def runs_at_once(jobs: int | None, budget: Budget, configs: Sequence[Config]) -> int:
    """Return how many runs go on at once.

    Args:
        jobs: as asked for; None leaves it to the machine: its cores, but one on a GPU or for a budget in seconds.
        budget: of each run.
        configs: of the runs.

    Raises:
        ConfigError: several, though seconds are the budget.
    """
    if budget.kind == "seconds" and (jobs or 1) > 1:
        raise ConfigError(
            f"--jobs must be 1 where the budget is in seconds, for runs slow each other. Got {jobs}. Leave it out, or "
            "give a budget in evaluations."
        )
    on_gpu = torch.cuda.is_available() and any(config.model.device != "cpu" for config in configs)
    return jobs or (1 if on_gpu or budget.kind == "seconds" else cores())


def choose_seeds(request: CompareRequest, console: Console) -> int:
    """Return how many runs each configuration gets; with `detect` as many as resolve it, never fewer than there are.

    Raises:
        ConfigError: seeds are given twice, or nothing tells how far seeds are apart.
    """
    if request.detect is None:
        if request.sd is not None:
            raise ConfigError("--sd belongs to --detect. Got no --detect. Add it, or remove --sd.")
        return request.seeds or SEEDS
    if request.seeds is not None:
        raise ConfigError("--detect chooses the number of seeds. Got --seeds too. Remove one of them.")
    earlier = Record.read(request.out).seeds if (request.out / STATE).is_file() else 0
    return max(earlier, seeds_for(request.out, request.metric, request.detect, request.sd, console))


def seeds_for(out: Path, metric: str | None, detect: float, sd: float | None, console: Console) -> int:
    """Return how many seeds resolve a difference, told on the console.

    Args:
        out: a comparison, for the measured sd of paired differences.
        metric: as in `CompareRequest`.
        detect: the difference.
        sd: of paired differences; None = the measured one.
        console: where to tell.

    Raises:
        ConfigError: there is neither an sd nor a comparison that tells it, or it takes too many seeds.
    """
    origin = "given"
    if sd is None:
        measured = measured_sd(collect(out, metric)) if (out / STATE).is_file() else None
        if measured is None:
            raise ConfigError(
                f"--detect needs the sd of paired differences. Got no --sd, and {out} has not two configurations with "
                "two seeds that differ. Give --sd, or compare with --seeds 5 first."
            )
        sd, (low, high) = measured[0], sd_interval(*measured)
        origin = f"measured on {measured[1]} seeds, which leaves {low:.2g} to {high:.2g}"
    seeds = seeds_to_detect(detect, sd)
    console.print(
        f"A difference of {detect:g} takes {seeds} seeds (paired t-test, power {POWER:g}, level {ALPHA:g}, sd of "
        f"paired differences {sd:.3g}, {origin}).",
        highlight=False,
        markup=False,
    )
    return seeds


def _plan(
    pairs: Sequence[tuple[Candidate, Config]],
    budget: Budget,
    request: CompareRequest,
    prices: Prices,
    seconds: dict[str, float | None],
    earlier: Sequence[Planned],
) -> list[Planned]:
    """Plan every configuration. What was planned earlier stays."""
    planned, problems, known = [], list[str](), {one.label: one for one in earlier}
    for candidate, config in pairs:
        label, evals, own_noise = candidate.label, request.evals, request.own_noise
        try:
            planned.append(
                known.get(label)
                or plan_candidate(candidate, config, budget, evals, prices, seconds.get(label), own_noise)
            )
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return planned


def print_plan(console: Console, planned: Sequence[Planned], untimed: Sequence[str], seeds: int) -> None:
    """Print what each configuration will cost, one row each."""
    rows = []
    for one in planned:
        iterations, each = one.iterations, one.iteration_seconds
        cells = (
            one.label,
            f"{iterations:,}",
            f"{one.iteration_cost:,g}",
            f"{iterations * one.iteration_cost:,.0f}",
            NOTHING if each is None else f"{iterations * each:,.1f}",
            f"{RunSettings(iterations=iterations, eval_every=one.eval_every).evaluations}",
        )
        rows.append(dict(zip(PLAN, cells, strict=True)))
    rows += [dict.fromkeys(PLAN, NOTHING) | {PLAN[0]: label, PLAN[1]: "when timed"} for label in untimed]
    console.print(console_table(f"Plan, {seeds} seed{'s' * (seeds > 1)} each", rows, PLAN))
