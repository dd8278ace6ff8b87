"""One process's measurement of training iterations: seconds by phase, what a rollout stores, what a step waits for."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from diffrl.config.load import load_config
from diffrl.config.schema import Config
from diffrl.cost.meter import TRAINED, UNGRADED, PhaseClock
from diffrl.lifecycle import train
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session
from diffrl.records import Iteration
from diffrl.run.execution import TrainingRun
from diffrl.run.journal import Journal
from diffrl.terminal.progress import Progress
from diffrl.tracking.metrics import read_metrics
from diffrl.training.loop import Trainer
from diffrl.training.messages import Messages
from reward_models.common.stores import open_to_read

DRAWN = ("explore", "rollout", "values")
"""Phases in which the network runs forward; each counts its evaluations under its own name."""


class ProcessClock(PhaseClock):
    """A `PhaseClock` that adds up the process's CPU seconds too, of all its threads."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.cpu_seconds: dict[str, float] = {}
        self._cpu_within = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block as part of `phase`."""
        start, before, self._cpu_within = time.process_time(), self._cpu_within, 0.0
        try:
            with super().__call__(phase):
                yield
        finally:
            whole = time.process_time() - start
            self.cpu_seconds[phase] = self.cpu_seconds.get(phase, 0.0) + whole - self._cpu_within
            self._cpu_within = before + whole


def matmul_rate(size: int = 1024, repeats: int = 5) -> float:
    """Return operations a CPU second of float32 matrix products, the best of some."""
    x, best = torch.ones(size, size), float("inf")
    for _ in range(repeats):
        start = time.process_time()
        x @ x
        best = min(best, time.process_time() - start)
    return 2 * size**3 / best


def stored_bytes(iteration: Iteration) -> int:
    """Count bytes of an iteration's recorded steps; what several columns share counts once."""
    columns = [column for column in vars(iteration.samples.rollout.edges).values() if isinstance(column, torch.Tensor)]
    return sum({column.untyped_storage().data_ptr(): column.untyped_storage().nbytes() for column in columns}.values())


def index_bytes(run: Path) -> int:
    """Count bytes of a run's index of samples, its log included."""
    with closing(open_to_read(run / "samples.sqlite")) as database:
        pages, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return pages * size


def measure_run(path: str, overrides: Sequence[str], iterations: int) -> dict[str, dict[str, float]]:
    """Measure a configuration after one iteration to warm up: rows of numbers, by what they are about.

    Returns:
        Means of an iteration: of each phase "cpu" and "wall" seconds, and where a network runs "share" of this
        machine's matrix products in these CPU seconds; of "stored" the bytes of the recorded steps, also by sample
        and stochastic step, and these in latents of float32.
    """
    with TemporaryDirectory() as folder:
        fixed = [f"run.dir={folder}", "track.trees=null", f"run.iterations={iterations + 2}", "train.warmup_updates=0"]
        config = load_config(path, [*fixed, "run.eval_every=null", *overrides])
        session = open_session(Preview(config), Path(folder))
        trainer, quiet = Trainer(session, Messages()), Console(quiet=True)
        journal = Journal(Path(folder), config, session.ranks)
        run = TrainingRun(trainer, journal, Progress(quiet, iterations + 2, quiet=True))
        clock = ProcessClock(session.device)
        trainer.clock = trainer.updater.clock = trainer.sampling.clock = trainer.crediting.clock = clock
        assign = trainer.crediting.assign

        def credited(*arguments):
            with clock("credit"):
                return assign(*arguments)

        def iterate() -> Iteration:
            done = trainer.iterate()
            with clock("journal"):  # samples and metrics, as in a run
                run.write(done)
            return done

        trainer.crediting.assign = credited
        run.cost.begin(trainer.counts())
        iterate()
        best, before = matmul_rate(), dict(session.meter.evaluations)
        stored_before = index_bytes(Path(folder))
        clock.seconds, clock.cpu_seconds = {}, {}
        wall, cpu, done = 0.0, 0.0, None
        for _ in range(iterations):
            done = None  # let go of the last one's samples
            start, cpu_start = time.perf_counter(), time.process_time()
            done = iterate()
            wall, cpu = wall + time.perf_counter() - start, cpu + time.process_time() - cpu_start
        rate, written = max(best, matmul_rate()), index_bytes(Path(folder)) - stored_before
        journal.close()
        counts = {name: count - before[name] for name, count in session.meter.evaluations.items()}
    seconds = {
        **{phase: (clock.cpu_seconds[phase], clock.seconds[phase]) for phase in clock.seconds},
        "rest": (cpu - sum(clock.cpu_seconds.values()), wall - sum(clock.seconds.values())),
        "iteration": (cpu, wall),
    }
    operations = flops_by_phase(counts, flops_of(config))
    rows = {
        phase: {"cpu": c / iterations, "wall": w / iterations}
        | ({"share": operations[phase] / c / rate} if operations.get(phase) and c else {})
        for phase, (c, w) in seconds.items()
    }
    rows["journal"]["bytes of samples.sqlite"] = written / iterations
    rollout, stored = done.samples.rollout, stored_bytes(done)
    steps = len(rollout.edges.step.unique())
    each, latent = stored / max(1, len(rollout) * steps), 4 * rollout.latents[0].numel()
    rows["stored"] = {"bytes a sample-step": each, "latents a sample-step": each / latent, "MiB": stored / 2**20}
    return rows


def measure_history(path: str, overrides: Sequence[str], iterations: int) -> dict[str, float]:
    """Train a run, and return what its bookkeeping takes early and late: "seconds/other" of its metrics.jsonl.

    Returns:
        Medians over ten iterations, around the tenth ("early") and before the end ("late"), and "ratio", late / early.
    """
    with TemporaryDirectory() as folder:
        fixed = [f"run.dir={folder}", "run.name=history", "track.trees=null", f"run.iterations={iterations}"]
        run = train(load_config(path, [*fixed, "run.eval_every=null", *overrides]), Console(quiet=True))
        other = [row["seconds/other"] for row in read_metrics(run / "metrics.jsonl") if row.get("iteration")]
    early, late = median(other[5:15]), median(other[-11:-1])
    return {"early": early, "late": late, "ratio": late / early}


def flops_of(config: Config) -> int | None:
    """Count operations of a network evaluation; None where not known, or in a revision that counted none."""
    try:
        from diffrl.cost.activations import activations_of
    except ImportError:
        return None
    counted, _ = activations_of(config)
    return None if counted is None else counted.flops


def flops_by_phase(evaluations: Mapping[str, int], each: int | None) -> dict[str, float]:
    """Return operations of the network alone in each phase; the backward pass counts as two forward ones.

    Args:
        evaluations: by purpose, as `CostMeter` counts them.
        each: operations of one; None where that is not known.
    """
    if each is None:
        return {}
    by_phase = {phase: float(each * evaluations[phase]) for phase in DRAWN}
    by_phase["update"] = float(each * TRAINED * evaluations["update"])
    by_phase["rollout"] += each * evaluations["audit"]
    by_phase["update"] += each * sum(evaluations[name] for name in UNGRADED if name not in (*DRAWN, "audit"))
    return by_phase | {"iteration": sum(by_phase.values())}
