"""A run that goes on with another number of iterations: `diffrl train --resume RUN run.iterations=N`.

Nothing that has been trained depends on how long the run will be, but for the rate of a cosine schedule, which goes on
as the new length has it. config.yaml is rewritten once the checkpoint has been found; from then on the run has N.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffrl.checkpoint.files import Checkpoint, latest_checkpoint, newest_first, step_of
from diffrl.config import Config, load_config
from diffrl.errors import ConfigError, DiffrlError
from diffrl.files import read_own
from diffrl.run.ending import again
from diffrl.run.journal import CHECKPOINTS
from diffrl.run.kept_config import changes_since, compare_configs, flat, may_change
from diffrl.run.resume import lost_history, newest_known, next_folder, require_left
from diffrl.tracking.rewards import REWARDS
from diffrl.training.optim import learning_rate_factor
from reward_models.common.messages import closest

SUMMARY, REPORT = "summary.json", "report.html"
ENDING = ("before_after.png", "curve.png", REPORT, SUMMARY)
"""What tells of a run's end. The summary, by which one knows that there was one, is moved last."""


def _suggest_keys(overrides: Sequence[str], config: Config) -> None:
    """Refuse keys that are misspelt; one that no key is like is left to others.

    Raises:
        ConfigError: names the key that was meant.
    """
    known = flat(config.model_dump())
    problems = []
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(f"{one}.".startswith(f"{key}.") for one in known) and (meant := closest(key, known)) is not None:
            problems.append(f"{key} is not a known key. Did you mean {meant!r}?")
    if problems:
        raise ConfigError(problems, "--resume")


def changed_config(
    run_dir: Path, config: Config, overrides: Mapping[str, Any] | Sequence[str], from_start: bool = False
) -> Config:
    """A run's configuration with what may be changed when it goes on; nothing is written.

    Args:
        run_dir: the run.
        config: as its config.yaml has it.
        overrides: as for `load_config`.
        from_start: what is trained already will be set aside.

    Raises:
        ConfigError: a key that training depends on, a bad value, or fewer iterations than are trained.
    """
    given = [f"{key}={value}" for key, value in overrides.items()] if isinstance(overrides, Mapping) else overrides
    refused = [text for text in given if not may_change(text.partition("=")[0].strip())]
    if refused:
        _suggest_keys(refused, config)
        raise ConfigError(
            "--resume goes on with the configuration that was trained with; only run.iterations and what training does "
            "not depend on (run.checkpoint_every, run.keep_checkpoints, track, guards, batch sizes, devices) may be "
            f"changed. Got {' '.join(refused)}. Leave it out, or start a new run from this one's weights: diffrl train "
            f"{run_dir / 'config.yaml'} run.name=NEW {' '.join(refused)} --init-from {run_dir}"
        )
    if not overrides:
        return config
    now = load_config(run_dir / "config.yaml", overrides)
    if now.run.iterations != config.run.iterations and not from_start:
        reached = max((step_of(path) for path in newest_first(run_dir / CHECKPOINTS)), default=0)
        require_left(now, run_dir, reached + 1)
    return now


def is_complete(run_dir: Path, config: Config) -> bool:
    """Whether all is trained and written, and resuming would change nothing; what is damaged is not complete."""
    summary = read_summary(run_dir)
    if summary.get("iterations") != config.run.iterations or not summary.get("updates_with_gradient"):
        return False
    if not all((run_dir / name).is_file() for name in (REWARDS, "environment.json", REPORT)):
        return False
    problems: list[str] = []
    try:
        newest = latest_checkpoint(run_dir / CHECKPOINTS, problems.append)
        if newest is None or newest.step != config.run.iterations or newest_known(run_dir) != newest.step:
            return False
        changed = compare_configs(newest.state.get("config"), config, str(run_dir / "config.yaml"))
        return not problems and changed is None and not lost_history(run_dir, newest.step)
    except (DiffrlError, OSError):
        return False


def complete_words(run_dir: Path, iterations: int) -> str:
    """What to tell of a run that is complete."""
    return (
        f"{run_dir} is finished: all {iterations} iterations are trained and everything is written. To train it "
        f"further:\n  {again(run_dir)} run.iterations={2 * iterations}"
    )


def rate_words(config: Config, checkpoint: Checkpoint) -> str | None:
    """What becomes of the learning rate where a run goes on with another number of iterations; None where it does not.

    Args:
        config: as it is now.
        checkpoint: that the run goes on from, with the configuration of before.
    """
    was = changes_since(checkpoint.state.get("config"), config).get("run.iterations", (None, None))[0]
    if was is None:
        return None
    t, done, now = config.train, checkpoint.state["updates"], config.run.iterations

    def rate(iterations: int) -> float:
        total = iterations * t.updates_per_iteration
        factor = learning_rate_factor(done, total, t.schedule, t.warmup_updates, t.final_learning_rate)
        return t.learning_rate * factor

    planned = f"{now} iterations are to be trained in place of {was}."
    if t.schedule == "constant":
        return f"{planned} The learning rate is {rate(now):.3g}, as it would have been (constant)."
    return (
        f"{planned} The learning rate is {rate(now):.3g} from here on, where the cosine over all {now} iterations "
        f"has it after {checkpoint.step}; the one over {was} had {rate(was):.3g}. It ends at "
        f"{t.learning_rate * t.final_learning_rate:.3g}."
    )


def set_ending_aside(run_dir: Path, iterations: int) -> list[str]:
    """Move what tells of an end that is none any more into a folder of its own; what was done, in a message.

    Args:
        run_dir: the run, locked.
        iterations: that it has now.

    Raises:
        DiffrlError: the disk refused; what was not moved is where it was.
    """
    ended = read_summary(run_dir).get("iterations")
    if type(ended) is not int or ended >= iterations:
        return []
    folder = next_folder(run_dir)
    moved = [name for name in ENDING if (run_dir / name).is_file()]
    try:
        folder.mkdir()
        for name in moved:
            os.replace(run_dir / name, folder / name)
    except OSError as error:
        raise DiffrlError(f"What tells of the run's end cannot be moved to {folder}: {error}. Free space.") from error
    return [f"What told of the end after iteration {ended} is kept in {folder}: {', '.join(moved)}."]


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Return the run's summary; empty if it has none that can be read."""
    try:
        found = json.loads(read_own(run_dir / SUMMARY))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
