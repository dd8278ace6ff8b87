"""Which of a run's checkpoints is meant: the newest healthy one, another by its name; and the model with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffrl.checkpoint.files import (
    Checkpoint,
    checkpoint_steps,
    latest_checkpoint,
    load_checkpoint,
    newest_first,
    step_of,
)
from diffrl.config import Config
from diffrl.errors import CheckpointError, ConfigError, DiffrlError
from diffrl.models.adapter import ModelAdapter
from diffrl.run.directory import open_run_dir
from diffrl.run.inputs import warn_of_inputs
from diffrl.run.journal import CHECKPOINTS
from diffrl.tracking.health import METRICS, read_health
from diffrl.training.inputs import digest_base, digest_packages
from diffrl.training.policy import Policy
from diffrl.training.session import open_adapter


@dataclass(frozen=True)
class Choice:
    """Which checkpoint is asked for; with none of the three, the newest healthy one that is whole."""

    step: int | None = None  # that of this iteration
    best: bool = False  # of those whose iteration was evaluated, the one with the best first held-out reward
    newest: bool = False  # the newest that is whole, healthy or not

    @property
    def asked(self) -> list[str]:
        """Return the options that were given."""
        options = {f"--step {self.step}": self.step is not None, "--best": self.best, "--newest": self.newest}
        return [option for option, named in options.items() if named]


HEALTHY, NEWEST = Choice(), Choice(newest=True)


def require_choice(choice: Choice, run: Path | None, option: str = "--run") -> None:
    """Refuse what names no checkpoint, or two.

    Args:
        choice: as asked for.
        run: whose checkpoints they are; None where no run was named.
        option: that names the run, for the message.

    Raises:
        ConfigError: the choice does not add up.
    """
    asked = choice.asked
    if len(asked) > 1:
        raise ConfigError(
            f"--step, --best and --newest each name a checkpoint. Got {' and '.join(asked)}. Keep one of them."
        )
    if asked and run is None:
        raise ConfigError(
            f"--step, --best and --newest choose a checkpoint of {option}. Got {asked[0]} without it. Add {option}."
        )


def choose_checkpoint(run_dir: Path, config: Config, choice: Choice, report: Callable[[str], None]) -> Checkpoint:
    """Return the checkpoint that is asked for. Where none was named, a damaged one has a stand-in, which is reported.

    Raises:
        ConfigError: the run has no such checkpoint, or none that is healthy.
        CheckpointError: it has none at all, or what was asked for is damaged.
    """
    if choice in (HEALTHY, NEWEST):
        trained = trained_steps(run_dir)
        wanted = trained if choice == NEWEST else _healthy(run_dir, config, trained, report)
        newest = latest_checkpoint(run_dir / CHECKPOINTS, report, wanted=wanted)
        if newest is None:
            raise _none_yet(run_dir)
        return newest
    step = best_step(run_dir, config, report) if choice.best else choice.step
    return load_checkpoint(place_of(run_dir, step, "--step"))


def place_of(run_dir: Path, step: int | None, key: str) -> Path:
    """Return the path of an iteration's checkpoint.

    Raises:
        ConfigError: there is none; lists those that there are.
        CheckpointError: there are none at all.
    """
    places = {step_of(path): path for path in newest_first(run_dir / CHECKPOINTS)}
    if not places:
        raise _none_yet(run_dir)
    if step not in places:
        raise ConfigError(
            f"{key} must be the iteration of a checkpoint. Got {step}; {run_dir} has those of {listed(places)}. "
            "Choose one of them."
        )
    return places[step]


def trained_steps(run_dir: Path) -> list[int]:
    """Return the iterations of a run's checkpoints, but for one that was written before training (`guards.recover`)."""
    return [step for step in checkpoint_steps(run_dir / CHECKPOINTS) if step]


def _healthy(run_dir: Path, config: Config, steps: Collection[int], report: Callable[[str], None]) -> Collection[int]:
    """Return which checkpoints are healthy, and report why newer ones are passed over; all of them if none is known."""
    if not steps or not (run_dir / METRICS).is_file():
        return steps
    try:
        health = read_health(run_dir, config.eval.rewards[0].key)
    except DiffrlError as error:
        report(f"Which checkpoints are healthy is not known: {error}")
        return steps
    sound, newest = [step for step in steps if not health.ailment(step)], max(steps)
    if newest in sound:
        return sound
    reason = f"The evaluation of iteration {newest} is not healthy: {health.ailment(newest)}."
    others = "Take one all the same with --newest, --best or --step."
    if not sound:
        raise ConfigError(
            f"A checkpoint of {run_dir} must be healthy to be taken unnamed, and none of {listed(steps)} is. {reason} "
            f"Compare {first_image(run_dir, 0)} with {first_image(run_dir, newest)}. {others}"
        )
    report(f"{reason} Taken: iteration {max(sound)}, the newest healthy one. {others}")
    return sound


def first_image(run_dir: Path, iteration: int) -> Path:
    """Return where the first image of an evaluation up to an iteration is, or the samples where none was kept."""
    for folder in sorted((run_dir / "samples").glob("eval-*"), reverse=True):
        number = folder.name.removeprefix("eval-")
        if number.isdecimal() and int(number) <= iteration:
            return min(folder.iterdir(), default=folder)
    return run_dir / "samples"


def best_step(run_dir: Path, config: Config, report: Callable[[str], None]) -> int:
    """Return the iteration whose checkpoint had the best first held-out reward; of equal ones the earliest.

    Args:
        run_dir: the run.
        config: of the run.
        report: is told which it is, its value, and what was better and has no checkpoint.

    Raises:
        ConfigError: no checkpoint is of an iteration that was evaluated.
        CheckpointError: there are none at all.
        DiffrlError: metrics.jsonl cannot be read.
    """
    steps = trained_steps(run_dir)
    if not steps:
        raise _none_yet(run_dir)
    health = read_health(run_dir, config.eval.rewards[0].key)
    reward, values, best = health.reward, health.values, health.best(steps)
    if best is None:
        raise ConfigError(
            f"--best is the checkpoint with the best held-out {reward}, so its iteration must have been evaluated. "
            f"{run_dir} has checkpoints of {listed(steps)} and evaluations after {listed(values)}. Choose with --step."
        )
    known = listed(set(steps) & values.keys())
    report(f"Best held-out {reward} of the iterations {known}: {values[best]:.4g} after iteration {best}.")
    top = health.best(values)
    if top is not None and health.sign * values[top] > health.sign * values[best]:
        gone = f"after iteration {top}, whose checkpoint is gone (run.keep_checkpoints)"
        report(f"It was better {gone if top else 'before training'}: {values[top]:.4g}.")
    return best


def listed(steps: Collection[int]) -> str:
    """Return iterations in their order, of many the first and the last ones."""
    words = [str(step) for step in sorted(steps)]
    return ", ".join(words if len(words) <= 12 else [*words[:6], "...", *words[-5:]]) or "none"


def _none_yet(run_dir: Path) -> CheckpointError:
    return CheckpointError(f"The run {run_dir} has no checkpoint yet. Let it reach run.checkpoint_every iterations.")


@dataclass(frozen=True)
class AlignedModel:
    """A run's model and one of its checkpoints.

    `messages` say why that one, where it was not simply the newest, and what is not as it was when it was trained.
    """

    run_dir: Path
    config: Config
    checkpoint: Checkpoint
    adapter: ModelAdapter
    policy: Policy
    messages: tuple[str, ...]

    def align(self) -> None:
        """Put the checkpoint's weights into the model; the EMA's, where the run has one."""
        self.policy.restore(aligned_weights(self.checkpoint)[1])


def aligned_weights(checkpoint: Checkpoint) -> tuple[str, Mapping[str, Tensor]]:
    """Return the weights that a run is evaluated with, and their name in the checkpoint: EMA's, else the policy's."""
    name = "ema" if "ema" in checkpoint.tensors else "policy"
    return name, checkpoint.tensors[name]


def load_aligned(run: Path, device: torch.device, choice: Choice = HEALTHY) -> AlignedModel:
    """Load a run's model and put a checkpoint into it.

    Raises:
        ConfigError: there is no such run or checkpoint, or its model cannot be loaded.
        CheckpointError: it has no checkpoint that can be used.
    """
    model = open_run_model(run, device, choice)
    model.align()
    return model


def open_run_model(run: Path, device: torch.device, choice: Choice = HEALTHY) -> AlignedModel:
    """Load a run's model as it was before any alignment, a checkpoint beside it; raises as `load_aligned` does."""
    run_dir, config = open_run_dir(run)
    messages: list[str] = []
    checkpoint = choose_checkpoint(run_dir, config, choice, messages.append)
    now = {**digest_base(config.model), **digest_packages()}
    messages += warn_of_inputs(checkpoint.state.get("inputs"), now, str(run_dir))
    adapter = open_adapter(config, device)
    policy = Policy(adapter, config.model.adapters, config.run.seed)
    return AlignedModel(run_dir, config, checkpoint, adapter, policy, tuple(messages))
