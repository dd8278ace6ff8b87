"""The runs of a comparison: timed, trained, and measured on the report split; what is there is not done again."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from diffrl import pulse
from diffrl.config import Config, dump_config
from diffrl.errors import DiffrlError
from diffrl.run.directory import open_run_dir
from diffrl.run.inputs import ACCEPT
from diffrl.studies.compare.arguments import Candidate
from diffrl.studies.compare.pairing import report_source
from diffrl.studies.compare.plan import Planned, Record, changed, plain, same_run
from diffrl.studies.compare.processes import Processes
from diffrl.studies.compare.reported import missing, read_reported
from diffrl.studies.compare.results import read_run
from diffrl.terminal.watch import duration
from diffrl.tracking.metrics import read_metrics

PROBE = "probe"
PROBE_ITERATIONS = 4
"""Iterations of a timed run; the first is left out, for it also loads and allocates."""


@dataclass
class Work:
    """A comparison that goes on."""

    out: Path  # its directory
    console: Console  # where it is told of
    processes: Processes  # run its commands
    # scales of the measurements on the report split, besides that of the configuration
    guidance: tuple[float, ...] = ()
    variety: int | None = None  # samples of a prompt for the measure of variety; None = not measured
    accept_changed_inputs: bool = False  # as its request says
    no_report: bool = False  # whether the report split is left alone
    failures: list[str] = field(default_factory=list)  # what has failed, a sentence each

    def report(self, text: str) -> None:
        """Tell it as it stands."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Job:
    """One run: a configuration with one seed."""

    planned: Planned  # the configuration
    number: int  # of the seed, from 0
    name: str  # in messages
    there: bool  # whether it was trained before


def time_all(
    work: Work, pairs: Sequence[tuple[Candidate, Config]], earlier: Sequence[Planned]
) -> dict[str, float | None]:
    """Return seconds of an iteration of each configuration, by label; what was timed earlier is not timed again."""
    seconds: dict[str, float | None] = {one.label: one.iteration_seconds for one in earlier}

    def note(pair: tuple[Candidate, Config], measured: float | None) -> None:
        if measured is not None:
            work.report(f"{pair[0].label}: {measured:.3f} s an iteration")
            seconds[pair[0].label] = measured

    untimed = [pair for pair in pairs if pair[0].label not in seconds]
    work.processes.each(lambda pair: _time_one(work, *pair), untimed, note)
    return seconds


def _time_one(work: Work, candidate: Candidate, config: Config) -> float | None:
    """Return seconds of one iteration, the median of a short run; None if that run failed."""
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
            "others": {},
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


def train_all(work: Work, record: Record) -> None:
    """Train seed after seed, so that a comparison that is cut short still compares, and a slow hour slows all alike."""
    runs = [(number, planned) for number in range(record.seeds) for planned in record.configurations]
    jobs = [
        Job(
            planned,
            number,
            f"[{index}/{len(runs)}] {planned.label}, seed {number}",
            (work.out / planned.folder / f"seed-{number}" / "summary.json").is_file(),
        )
        for index, (number, planned) in enumerate(runs, start=1)
    ]
    pulse.begin("training", {pulse.RUNS: len(jobs)})

    def done(job: Job, trained: bool) -> None:
        _tell(work, job, trained)
        pulse.advance(pulse.RUNS, 1)

    work.processes.each(lambda job: _run_to_completion(work, job), jobs, done)


def _run_to_completion(work: Work, job: Job) -> bool:
    """Train a run and measure it; returns whether it was trained."""
    config, what = job.planned.of_seed(job.number, work.out), f"{job.planned.label}, seed {job.number}"
    try:
        if not _train(work, config, what):
            return False
        _measure(work, config, job.number == 0, what)
    except DiffrlError as error:  # of a run whose files are damaged; the others go on
        work.failures.append(f"{what}: {error}")
        return False
    return True


def _tell(work: Work, job: Job, trained: bool) -> None:
    if not trained:
        work.report(f"{job.name}: failed")
        return
    config = job.planned.of_seed(job.number, work.out)
    metric = config.eval.rewards[0].key
    try:
        run, _ = read_run(Path(config.run.dir) / config.run.name, job.number, metric, plain(config))
    except DiffrlError as error:
        work.failures.append(f"{job.planned.label}, seed {job.number}: {error}")
        return
    took = "there already" if job.there else f"in {duration(run.curve[-1].seconds)} of training"
    before, after = run.curve[0].score, run.curve[-1].score
    work.report(f"{job.name}: {metric} {before:.3f} -> {after:.3f}, {took}")


def _train(work: Work, config: Config, what: str) -> bool:
    """Train a run, go on with it, or leave it as it is if it has finished; returns whether it has now."""
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
    if work.accept_changed_inputs:
        arguments.append(ACCEPT)
    path.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(dump_config(config), encoding="utf-8")
    code = work.processes.run(arguments, log)
    if code == 0 and (path / "summary.json").is_file():
        return True
    work.failures.append(f"{what}: exit code {code}, {_last_words(log)}. See {log}")
    return False


def _measure(work: Work, config: Config, with_base: bool, what: str) -> None:
    """Have `diffrl evaluate` write down in a finished run its scores on the report split, where there is one."""
    path, source = Path(config.run.dir) / config.run.name, report_source(plain(config))
    if source is None or work.no_report:
        return
    wanted = tuple(dict.fromkeys((config.eval.guidance_scale, *work.guidance)))
    reported = read_reported(path, plain(config), config.run.iterations)
    scales, base = missing(reported, wanted, with_base, work.variety is not None)
    if not scales:
        return
    arguments = ["evaluate", "--run", str(path), "--newest", "--prompts", source, *(["--base"] if base else [])]
    arguments += [] if work.variety is None else ["--variety", str(work.variety)]
    arguments += [part for scale in scales for part in ("--guidance", f"{scale!r}")]
    log = path.with_suffix(".report.log")
    code = work.processes.run(arguments, log)
    if code != 0:
        work.failures.append(f"{what}, on {source}: exit code {code}, {_last_words(log)}. See {log}")


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return repr(lines[-1] if lines else "without a word")
