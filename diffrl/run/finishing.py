"""The end of a run that trained everything: its summary, its pictures, its page, and what the user is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from diffrl import pulse
from diffrl.cost.meter import network_evaluations, training_cost
from diffrl.errors import DiffrlError
from diffrl.files import discard, write_json
from diffrl.run.execution import TrainingRun
from diffrl.run.inputs import MEASURED_WITH
from diffrl.run.longer import REPORT, SUMMARY
from diffrl.run.summary import (
    held_out_change,
    print_summary,
    unplanned_evaluations,
    write_before_after,
    write_curve,
)
from diffrl.tracking.endings import STOPPED, other_inputs
from diffrl.tracking.metrics import read_metrics
from diffrl.training.inputs import versions


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
        picture, last = run_dir / "before_after.png", config.run.iterations
        write_before_after(run_dir, rewards[0], last, picture, higher, measured)
    except DiffrlError as error:  # a picture is gone, which nobody can draw again
        report(f"before_after.png was left out. {error}")
    print_summary(console, summary, run_dir, session.eval_prompts[0])
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
    """Write report.html, first rank only. That it cannot be written is reported, and ends nothing: the run is done.

    Returns:
        Whether it was written.
    """
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
    """Whether what was counted and what was skipped make up the plan; where samples are chosen, at most the plan."""
    made = evaluations["counted"] + evaluations["skipped"]
    planned: int = evaluations["planned"]
    return made == planned if evaluations["exact"] else made <= planned
