"""Compare configurations at equal budget, over several seeds.

Each run is a `diffrl train` of its own process, one after the other, so that peak memory and caches are its own. What
was finished before is kept, what was begun goes on, and a run that fails does not keep the others from theirs.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diffrl.config import Config, dump_config
from diffrl.errors import ConfigError, DiffrlError
from diffrl.run.directory import locked, open_run_dir
from diffrl.run.progress import duration
from diffrl.studies.compare.arguments import Budget, Candidate, load_candidates, parse_budget, parse_candidates
from diffrl.studies.compare.plan import (
    Planned,
    Record,
    changed,
    earlier_plan,
    plan_candidate,
    same_run,
)
from diffrl.studies.compare.results import collect, read_run
from diffrl.studies.compare.tables import print_report, write_report
from diffrl.tracking.metrics import read_metrics

PROBE = "probe"
PROBE_ITERATIONS = 4
"""Iterations of a timed run; the first is left out, for it also loads and allocates."""


@dataclass(frozen=True)
class CompareRequest:
    """What to compare.

    Args:
        configurations: "[label: ]path [a.b=c ...]" each.
        out: directory of the comparison.
        budget: "evaluations=NUMBER" or "seconds=NUMBER".
        seeds: runs of each configuration.
        evals: held-out evaluations after the one before training, at most.
        metric: held-out reward that is compared; None = the first of the first configuration.
        target: score whose cost is reported.
    """

    configurations: tuple[str, ...]
    out: Path
    budget: str | None
    seeds: int = 1
    evals: int = 8
    metric: str | None = None
    target: float = 0.6


@dataclass
class _Work:
    """A comparison that goes on: where, what is shown, what has failed."""

    out: Path
    console: Console
    failures: list[str] = field(default_factory=list)

    def report(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def compare(request: CompareRequest, console: Console, dry_run: bool = False) -> None:
    """Train what is not trained yet and report.

    Args:
        request: what to compare.
        console: where to show.
        dry_run: only show the plan; nothing is timed, trained or written.

    Raises:
        ConfigError: something is wrong with the request, before anything is trained.
        DiffrlError: some runs failed; the others were seen through and reported.
    """
    budget, candidates = parse_budget(request.budget), parse_candidates(request.configurations)
    configs = load_candidates(candidates, request.metric)
    work = _Work(request.out, console)
    asked = (candidates, configs, budget, request.evals)
    if dry_run:
        earlier = earlier_plan(request.out, *asked, request.seeds)
        seconds = {label: planned.iteration_seconds for label, planned in earlier.items()}
        untimed = [c.label for c in candidates if budget.kind == "seconds" and c.label not in earlier]
        known = [pair for pair in zip(candidates, configs, strict=True) if pair[0].label not in untimed]
        print_plan(console, _plan(known, budget, request.evals, seconds, earlier), untimed, request.seeds)
        return
    earlier_plan(request.out, *asked, request.seeds)  # refuse before the directory is touched
    with locked(request.out):
        earlier = earlier_plan(request.out, *asked, request.seeds)
        record = Record(budget, request.evals, request.seeds, earlier)
        record.save(request.out)
        pairs = list(zip(candidates, configs, strict=True))
        seconds = _time_all(work, pairs, earlier) if budget.kind == "seconds" else {}
        if budget.kind == "seconds":
            pairs = [pair for pair in pairs if pair[0].label in seconds]
        record.planned = _plan(pairs, budget, request.evals, seconds, earlier)
        record.save(request.out)
        print_plan(console, record.planned, [], request.seeds)
        _train_all(work, record)
    if record.planned:
        show_report(request.out, console, request.metric, request.target)
    if work.failures:
        count = len(work.failures)
        raise DiffrlError("\n  - ".join([f"{count} run{'s' * (count > 1)} failed:", *work.failures]))


def show_report(out: Path, console: Console, metric: str | None = None, target: float = 0.6) -> None:
    """Read a comparison, write its table and figure and show the table.

    Raises:
        DiffrlError: no comparison there, or a run without the metric.
    """
    comparison = collect(out, metric)
    write_report(comparison, out, target)
    print_report(console, comparison, target, out)


def _plan(
    pairs: Sequence[tuple[Candidate, Config]],
    budget: Budget,
    evals: int,
    seconds: dict[str, float | None],
    earlier: dict[str, Planned],
) -> dict[str, Planned]:
    """Plan every configuration; by label. What was planned earlier stays."""
    planned, problems = {}, []
    for candidate, config in pairs:
        label = candidate.label
        try:
            planned[label] = earlier.get(label) or plan_candidate(candidate, config, budget, evals, seconds.get(label))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return planned


def print_plan(console: Console, planned: dict[str, Planned], untimed: Sequence[str], seeds: int) -> None:
    """Print what each configuration will cost, one row each."""
    table = Table(title=f"Plan, {seeds} seed{'s' * (seeds > 1)} each", title_justify="left")
    table.add_column("configuration", overflow="fold", min_width=16)
    for column in ("iterations", "of", "= evaluations", "seconds", "held-out"):
        table.add_column(column, justify="right")
    for label, one in planned.items():
        iterations, each = one.config.run.iterations, one.iteration_seconds
        table.add_row(
            Text(label),
            f"{iterations:,}",
            f"{one.iteration_cost:,g}",
            f"{iterations * one.iteration_cost:,.0f}",
            "–" if each is None else f"{iterations * each:,.1f}",
            f"{one.config.run.evaluations}",
        )
    for label in untimed:
        table.add_row(Text(label), "when timed", *["–"] * 4)
    console.print(table)


def _time_all(
    work: _Work, pairs: Sequence[tuple[Candidate, Config]], earlier: dict[str, Planned]
) -> dict[str, float | None]:
    """Seconds of an iteration of each configuration, by label; what was timed earlier is not timed again."""
    seconds: dict[str, float | None] = {}
    for candidate, config in pairs:
        if candidate.label in earlier:
            seconds[candidate.label] = earlier[candidate.label].iteration_seconds
            continue
        measured = _time_one(work, candidate, config)
        if measured is not None:
            work.report(f"{candidate.label}: {measured:.3f} s an iteration")
            seconds[candidate.label] = measured
    return seconds


def _time_one(work: _Work, candidate: Candidate, config: Config) -> float | None:
    """Seconds of one iteration, the median of a short run; None if that run failed."""
    folder = work.out / candidate.folder
    shutil.rmtree(folder / PROBE, ignore_errors=True)
    short = changed(
        config,
        run={
            "name": PROBE,
            "dir": str(folder),
            "iterations": PROBE_ITERATIONS,
            "eval_every": None,
            "checkpoint_every": PROBE_ITERATIONS,
        },
        train={"warmup_updates": 0},
        eval={"samples": 1},
        track={
            "tensorboard": False,
            "wandb": None,
            "pictures_per_iteration": 0,
            "pictures_per_evaluation": 0,
            "trees": None,
        },
    )
    if not _train(work, short, f"{candidate.label}: not timed"):
        return None
    rows = [row for row in read_metrics(folder / PROBE / "metrics.jsonl") if "cost/seconds" in row]
    total = [row["cost/seconds"] for row in rows]
    shutil.rmtree(folder / PROBE)
    return float(statistics.median(after - before for before, after in list(pairwise(total))[1:]))


def _train_all(work: _Work, record: Record) -> None:
    """Seed after seed, so that a comparison that is cut short still compares, and a slow hour slows all alike."""
    jobs = [(number, planned) for number in range(record.seeds) for planned in record.planned.values()]
    for index, (number, planned) in enumerate(jobs, start=1):
        name = f"[{index}/{len(jobs)}] {planned.candidate.label}, seed {number}"
        config = planned.of_seed(number, work.out)
        path = Path(config.run.dir) / config.run.name
        there = (path / "summary.json").is_file()
        if not _train(work, config, f"{planned.candidate.label}, seed {number}"):
            work.report(f"{name}: failed")
            continue
        run, _ = read_run(path, number, config.eval.rewards[0].key)
        took = "there already" if there else f"in {duration(run.curve[-1].seconds)} of training"
        before, after = run.curve[0].score, run.curve[-1].score
        work.report(f"{name}: {config.eval.rewards[0].key} {before:.3f} -> {after:.3f}, {took}")


def _train(work: _Work, config: Config, what: str) -> bool:
    """Train a run, go on with it, or leave it as it is if it has finished; whether it is finished now."""
    path = Path(config.run.dir) / config.run.name
    log, source = path.with_suffix(".log"), path.with_suffix(".yaml")
    arguments = ["train", str(source)]
    if (path / "config.yaml").is_file():
        if not same_run(open_run_dir(path)[1], config):
            work.failures.append(f"{what}: {path} is a run with another configuration. Move it away.")
            return False
        if (path / "summary.json").is_file():
            return True
        arguments = ["train", "--resume", str(path)]
    path.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(dump_config(config), encoding="utf-8")
    code = _run_command(arguments, log)
    if code == 0 and (path / "summary.json").is_file():
        return True
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    work.failures.append(f"{what}: exit code {code}, {lines[-1] if lines else 'without a word'!r}. See {log}")
    return False


def _run_command(arguments: Sequence[str], log: Path) -> int:
    """Run `diffrl` in a process of its own, its output appended to a log; its exit code.

    It is in a session of its own, so that Ctrl-C comes to us alone. We ask it to stop once, it writes a checkpoint, and
    we end after it; a second Ctrl-C ends it at once.
    """
    with log.open("ab") as output, _termination_raises():
        process = subprocess.Popen(
            [sys.executable, "-m", "diffrl.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait()
            finally:
                process.kill()
            raise


@contextmanager
def _termination_raises() -> Iterator[None]:
    """Inside, SIGTERM ends us as an exception, so that what we have started is ended too."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
