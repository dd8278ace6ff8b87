"""A loaded run seen through to its end: trained, then summed up, or stopped with a message and what there is kept."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from diffrl import pulse
from diffrl.checkpoint.files import Checkpoint
from diffrl.checkpoint.state import restore_rng, seed_rng
from diffrl.cost.meter import network_evaluations, training_cost
from diffrl.errors import DiffrlError, GuardStop
from diffrl.files import discard, write_json
from diffrl.precision.report import PrecisionReport
from diffrl.run.callbacks import Callback, Callbacks
from diffrl.run.checkpoints import trained_steps
from diffrl.run.directory import REPORT, SUMMARY
from diffrl.run.execution import TrainingRun, start_line
from diffrl.run.inputs import MEASURED_WITH
from diffrl.run.journal import Journal, random_group
from diffrl.run.recovery import restore_weights
from diffrl.run.results import Run
from diffrl.run.status import describe_kept, resume_command
from diffrl.run.summary import (
    held_out_change,
    print_summary,
    shown,
    unplanned_evaluations,
    write_before_after,
    write_curve,
)
from diffrl.terminal.exits import broken_peer, forbid_sys_exit, peer_gone
from diffrl.terminal.progress import Progress
from diffrl.terminal.signals import Ended, ImmediateStop, Interruption, StopSignal
from diffrl.terminal.watch import watched
from diffrl.tracking.endings import FAILED, RESUMED, STOPPED, other_inputs
from diffrl.tracking.health import read_health
from diffrl.tracking.metrics import read_metrics
from diffrl.training.inputs import versions
from diffrl.training.loop import Trainer
from diffrl.training.messages import Messages
from diffrl.training.session import Session


def run_to_completion(
    session: Session,
    run_dir: Path,
    checkpoint: Checkpoint | None,
    console: Console,
    stop: StopSignal,
    callbacks: Sequence[Callback],
) -> None:
    """Train a loaded run to its last iteration, and sum it up.

    Args:
        session: the run.
        run_dir: its directory, locked.
        checkpoint: that it goes on from; None at its beginning.
        console: where to show.
        stop: receives the signals.
        callbacks: are called as it goes on.

    Raises:
        GuardStop: a guard ended the run.
        Ended: a signal ended it, after a checkpoint.
        Exception: whatever else ended it, once it is in log.txt.
    """
    main, iterations = session.ranks.is_main, session.config.run.iterations
    hooks, opened = Callbacks(callbacks, main), Run(run_dir, session.config)
    with Progress(console, iterations, quiet=not main) as progress:
        if session.copy is not None and main:
            write_json(run_dir / "precision.json", asdict(session.copy.report))
            progress.message(describe(session.copy.report, draws=session.config.rollout.draw is not None))
        saved = None if checkpoint is None else checkpoint.step
        journal = Journal(run_dir, session.config, session.ranks, progress.message, saved)
        stop.processes, stop.speaks, stop.log = session.ranks.world, main, journal.log
        progress.log = journal.log
        stop.kept = lambda: describe_kept(run_dir, journal.saved, iterations)
        messages = Messages([progress.message, journal.log], main)
        trainer = Trainer(session, messages)
        run = TrainingRun(trainer, journal, progress, stop, hooks)
        goes_on = (run_dir / "log.txt").exists()
        if main:
            progress.message(start_line(session))
        for note in session.notes:
            messages.report(note)
        seed_rng(session.config.run.seed)
        journal.rewind(-1 if checkpoint is None else checkpoint.step)
        if goes_on:
            journal.log(f"{RESUMED}{checkpoint.step if checkpoint else 0}.")
        if checkpoint is not None:
            restore(trainer, checkpoint)
            if main:
                rows = read_metrics(run_dir / "metrics.jsonl")
                known = [value for row in rows if (value := shown(row)[1]) is not None]
                progress.resume(trainer.iteration, known)
        try:
            with forbid_sys_exit():
                hooks.start(opened)
                run.run()
        except Interruption as end:
            _report_interruption(run, end)
            leave_report(run)
            hooks.end(opened)
            if end.number is None:
                return
            raise Ended(128 + end.number) from end
        except Exception as error:
            failure = peer_gone(stop.kept()) if broken_peer(error, stop.processes) else error
            _log_failure(journal, failure)
            leave_report(run)
            if failure is not error:
                raise failure from error
            raise
        except BaseException as error:
            if not isinstance(error, ImmediateStop):  # which is reported where it ends
                _log_failure(journal, error)
            raise
        finally:
            _close(journal)
    with stop.finishing():
        if main:
            with watched(console, "summary and images"):
                finish(run, console)
        session.ranks.wait()
    if stop.received:
        messages.report(f"{stop.name} came when everything was trained: the run is complete.")
    hooks.end(opened)
    if trainer.guard.verdict:
        raise GuardStop(trainer.guard.verdict)


def _report_interruption(run: TrainingRun, end: Interruption) -> None:
    name = "A callback asked the run to stop" if end.number is None else signal.Signals(end.number).name
    trainer, journal = run.trainer, run.journal
    if journal.saved == trainer.iteration:
        how = f"Go on with: {resume_command(journal.run_dir)}"
        trainer.messages.report(f"{name}: checkpoint written after iteration {trainer.iteration}. {how}")
    else:
        trainer.messages.report(f"{name}: nothing was trained yet. {run.stop.kept()}")


def _log_failure(journal: Journal, error: BaseException) -> None:
    mark = STOPPED if isinstance(error, GuardStop) else f"{FAILED}{type(error).__name__}: "
    journal.log(f"{mark}{' '.join(str(error).split())}")


def _close(journal: Journal) -> None:
    """Close it; where an error is on its way already, that is the one to hear of."""
    on_its_way = sys.exc_info()[1]
    try:
        journal.close()
    except DiffrlError as error:
        if on_its_way is None:
            raise
        journal.log(str(error))


def describe(report: PrecisionReport, draws: bool) -> str:
    """Return what explores, or draws what trains, in one line; what the user should know of it in further ones."""
    flops = "" if report.flops_quantised is None else f" and {report.flops_quantised:.0%} of the FLOPs"
    what = "Drawing what trains" if draws else "Exploring"
    lines = [
        f"{what} in {report.precision} ({report.engine}): {report.parameters_quantised:.0%} of the parameters"
        f"{flops}, multiplied in {report.compute_dtype} with {report.scaling}; the list is in precision.json."
    ]
    if report.batch_dependent:
        lines.append("A sample's numbers depend a little on the others of its batch: activations share one scale.")
    return "\n".join([*lines, *report.notes])


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put weights, optimiser, average, generators and counters back, from a checkpoint that `require_fit` let pass."""
    session, tensors, state = trainer.session, checkpoint.tensors, dict(checkpoint.state)
    restore_weights(trainer, checkpoint)
    group = random_group(session.ranks.rank)
    if group in tensors:  # a rank that was not there goes on as it was seeded
        restore_rng(tensors[group], state[group])
    trainer.restore(state)


def finish(run: TrainingRun, console: Console) -> None:
    """Write summary.json and the pictures, and tell the user how it went."""
    trainer, run_dir, report = run.trainer, run.journal.run_dir, run.trainer.messages.report
    config, session = trainer.config, trainer.session
    rewards = [reward.key for reward in config.eval.rewards]
    rows = read_metrics(run_dir / "metrics.jsonl")
    counts, plan = run.counts, session.plan
    each = plan.network_evaluations["evaluation"] // plan.evaluations
    summary: dict[str, Any] = {
        "run": config.run.name,
        "seed": config.run.seed,
        "iterations": config.run.iterations,
        "updates": trainer.updater.updates,
        "updates_with_gradient": trainer.guard.learning.updates,
        "held_out": held_out_change(rows, rewards),
        "seconds": {name: round(value, 3) for name, value in sorted(trainer.clock.seconds.items())},
        "network_evaluations": {
            "planned": plan.total_network_evaluations + each * unplanned_evaluations(rows, config.run),
            "counted": network_evaluations(counts),
            "skipped": int(counts["evaluations_skipped"]),
            "exact": plan.exact,
        },
        "cost": {
            "evaluations": int(training_cost(counts, config.train.gradient_checkpointing)),
            "planned": plan.training_cost,
        },
        "counts": {name: int(count) for name, count in counts.items() if count},
        "peak_memory_bytes": trainer.peak_memory(),
        "on_policy_error": trainer.updater.on_policy_error,
        "device": session.device.type,
        "dtype": config.model.dtype,
        "processes": session.ranks.world,
        "versions": versions(),
    }
    changes = session.input_changes
    if changes:
        summary["input_changes"] = [{"after_iteration": at, "inputs": names} for at, names in changes]
    discard(run_dir / REPORT)  # beside a summary it says that everything was written: `is_complete`
    write_json(run_dir / SUMMARY, summary)
    write_curve(run_dir, rewards, run_dir / "curve.png", [at for at, _ in changes])
    higher = session.eval_scorers[0].scorer.spec.higher_is_better
    try:
        measured = [at for at, names in changes if any(name.startswith(MEASURED_WITH) for name in names)]
        image, last = run_dir / "before_after.png", config.run.iterations
        write_before_after(run_dir, rewards[0], last, image, higher, measured)
    except DiffrlError as error:  # a picture is gone, which nobody can draw again
        report(f"before_after.png was left out. {error}")
    warning = read_health(run_dir, config.eval.rewards[0].key).warning(trained_steps(run_dir))
    print_summary(console, summary, run_dir, session.eval_prompts[0], warning)
    for at, names in changes:
        report(other_inputs(at, names))
    if not as_planned(summary["network_evaluations"]) and not trainer.sampling.watch.changed:
        report("The count of network evaluations differs from the plan's. Please report this as a bug.")
    if trainer.guard.verdict:
        run.journal.log(f"{STOPPED}{trainer.guard.verdict}")
    if leave_report(run):
        page = run_dir / REPORT
        console.print(f"\nEverything on one page, to share: {page}", highlight=False, markup=False, soft_wrap=True)


def leave_report(run: TrainingRun) -> bool:
    """Write report.html, first rank only. That it cannot be written is reported, and ends nothing: the run is done."""
    if not run.trainer.session.ranks.is_main:
        return False
    pulse.begin("report.html")
    try:
        from diffrl.gallery.report import write_report

        write_report(run.journal.run_dir)
        return True
    except KeyboardInterrupt:
        why = "report.html was left out: interrupted while it was made."
    except Exception as error:  # whatever it is, the run and its exit code are as they would be without a report
        why = f"report.html could not be written: {type(error).__name__}: {' '.join(str(error).split())}"
    run.trainer.messages.report(why)
    return False


def as_planned(evaluations: Mapping[str, Any]) -> bool:
    """Return whether counted and skipped make up the plan; where samples are chosen, at most the plan."""
    made = evaluations["counted"] + evaluations["skipped"]
    planned: int = evaluations["planned"]
    return made == planned if evaluations["exact"] else made <= planned
