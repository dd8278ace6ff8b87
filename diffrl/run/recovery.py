"""The way back from an evaluation that found a run hacked or collapsed: a healthy checkpoint's weights.

Iterations go on counting: prompts, noise, schedule and cost are those of a run that never went back. What was trained
between the checkpoint and the alarm is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diffrl.checkpoint.files import Checkpoint, checkpoint_steps, load_checkpoint, step_path
from diffrl.checkpoint.state import restore_optimizer
from diffrl.errors import CheckpointError, DiffrlError, GuardStop
from diffrl.run.journal import CHECKPOINTS
from diffrl.tracking.health import METRICS, health_of
from diffrl.tracking.metrics import read_metrics
from diffrl.training.loop import Trainer


def restore_weights(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put weights, optimiser and averages back, from a checkpoint that `require_fit` let pass."""
    session, tensors = trainer.session, checkpoint.tensors
    session.policy.restore(tensors["policy"])
    restore_optimizer(session.optimizer, tensors["optimizer"], checkpoint.state["optimizer"])
    for name, average in trainer.updater.averages.items():
        if average is not None:
            average.restore(tensors[name])


def go_back(trainer: Trainer, run_dir: Path, row: Mapping[str, Any]) -> int | None:
    """Put the newest healthy checkpoint's weights back; all ranks take part.

    Args:
        trainer: stands after the iteration of an evaluation with an alarm.
        run_dir: the run.
        row: that evaluation's, which metrics.jsonl does not have yet.

    Returns:
        The checkpoint's iteration; None if there is no healthy one.

    Raises:
        GuardStop: it is damaged.
    """
    ranks, reward = trainer.ranks, trainer.config.eval.rewards[0].key
    step: int | None = None
    if ranks.is_main:
        with suppress(DiffrlError):  # somebody has damaged the metrics: nothing is known to be healthy
            health = health_of([*read_metrics(run_dir / METRICS), row], reward, lower=False)
            step = health.healthy(checkpoint_steps(run_dir / CHECKPOINTS))
    step = ranks.gather_objects(step)[0]
    if step is None:
        return None
    path = step_path(run_dir / CHECKPOINTS, step)

    def load() -> Checkpoint:
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            raise GuardStop(f"{error} So the run cannot go back to it. (guards.recover) It stops.") from error

    restore_weights(trainer, ranks.raise_on_all_ranks(load))
    trainer.recovered()
    return step
