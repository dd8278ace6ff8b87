"""What may change in a run's configuration when it goes on, its number of iterations among it.

A checkpoint keeps the configuration, so that a run never goes on with another one unnoticed. Nothing that has been
trained depends on how long the run will be, but for the rate of a cosine schedule, which goes on as the new length has
it. config.yaml is rewritten once the checkpoint has been found; from then on the run has N iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diffrl.checkpoint.files import Checkpoint, checkpoint_steps
from diffrl.config import Config, dump_config, load_config
from diffrl.config.load import make_config
from diffrl.errors import CheckpointError, ConfigError
from diffrl.run.journal import CHECKPOINTS
from diffrl.sections import show
from diffrl.training.optim import learning_rate_factor
from reward_models.common.messages import closest
from reward_models.common.yaml12 import Loader

MAY_CHANGE = (
    "run.iterations", "run.checkpoint_every", "run.keep_checkpoints", "track.", "guards.",
    "rollout.micro_batch", "rollout.decode_batch", "rollout.prompts_at_once", "rollout.explorers", "eval.batch",
    "train.micro_batch", "train.gradient_checkpointing",
    "model.device", "model.offload", "model.vae_slicing", "model.vae_tiling", "model.compile",
    "model.init_from.run", "model.lora.start.path",
    "prompts.eval_on_train", "prompts.too_long", "prompts.unscored",
)  # fmt: skip
"""Keys of config.yaml, or their beginnings, that change what is kept, watched and held in memory, how long the run is
and where what it began with lies, and not what has been trained but for rounding."""

OVERLAP = "rollout.explorers.overlap"
"""What may not change of `rollout.explorers`: the age of the weights that draw. Without the section it is false."""

REWARDS_MAY_CHANGE = ("batch_size", "device", "timeout", "options.url", "options.urls", "options.timeout")
"""The same of each reward: where and how fast it is computed."""


def kept_config(config: Config) -> str:
    """Return a configuration as YAML; where the run lies and what it is called does not matter to it."""
    anywhere = config.run.model_copy(update={"name": "run", "dir": "runs"})
    return dump_config(config.model_copy(update={"run": anywhere}))


def compare_configs(then: Any, now: Config, source: str) -> str | None:
    """Return what was changed in config.yaml since a checkpoint was written, where that may be; None if nothing was.

    Args:
        then: the configuration that the checkpoint holds, as YAML; older ones hold none.
        now: the configuration.
        source: where it is from.

    Raises:
        CheckpointError: the checkpoint holds something else.
        ConfigError: something was changed that training depends on.
    """
    changed = changes_since(then, now)
    named = {key: f"{key} was {show(was)} and is {show(is_now)}" for key, (was, is_now) in changed.items()}
    if refused := [named[key] for key in changed if not may_change(key)]:
        raise ConfigError(
            f"A run goes on with the configuration that it was trained with. Since its newest checkpoint "
            f"{'; '.join(refused[:8])}. Put that back, or start a new run: diffrl train {source} run.name=NEW.",
            source,
        )
    return f"Changed in config.yaml, and taken from here on: {'; '.join(named.values())}." if named else None


def changes_since(then: Any, now: Config) -> dict[str, tuple[Any, Any]]:
    """Return every key whose value differs, with the values of then and now; where the run lies is left out.

    Args:
        then: the configuration that a checkpoint holds, as YAML; older ones hold none, and tell of no change.
        now: the configuration.

    Raises:
        CheckpointError: the checkpoint holds something else.
    """
    if then is None or then == kept_config(now):
        return {}
    try:
        before = make_config(yaml.load(then, Loader)).model_dump()  # a SafeLoader
    except (yaml.YAMLError, ConfigError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError("The configuration that it holds cannot be read.") from error
    old, new = ({OVERLAP: False, **flat(config)} for config in (before, now.model_dump()))
    keys = [key for key in {**old, **new} if key not in ("run.name", "run.dir") and old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys}


def may_change(key: str) -> bool:
    """Return whether a key of config.yaml may be changed between two parts of a run."""
    if key.startswith(MAY_CHANGE):
        return key != OVERLAP
    section, _, rest = key.removeprefix("eval.").partition(".")
    return section == "rewards" and rest.partition(".")[2].startswith(REWARDS_MAY_CHANGE)


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings and lists as one mapping, keys and numbers joined by dots."""
    items: Any = node.items() if isinstance(node, Mapping) else enumerate(node)
    values: dict[str, Any] = {}
    for key, value in items:
        nested = isinstance(value, (Mapping, list, tuple)) and len(value) > 0
        values |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return values


def require_left(config: Config, run_dir: Path, least: int) -> None:
    """Refuse to go on to an iteration that was passed already.

    Args:
        config: with the number that is asked for.
        run_dir: the run.
        least: the lowest number that can be had.

    Raises:
        ConfigError: it is lower.
    """
    if config.run.iterations < least:
        raise ConfigError(
            f"run.iterations must be at least {least}, after what {run_dir} has trained already. Got "
            f"{config.run.iterations}. Raise it."
        )


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
    """Return a run's configuration with what may be changed when it goes on; nothing is written.

    Args:
        run_dir: the run.
        config: as its config.yaml has it.
        overrides: as for `load_config`.
        from_start: what is trained already will be set aside.

    Raises:
        ConfigError: a key that training depends on, a bad value, or fewer iterations than are trained.
    """
    texts = [f"{key}={value}" for key, value in overrides.items()] if isinstance(overrides, Mapping) else overrides
    refused = [text for text in texts if not may_change(text.partition("=")[0].strip())]
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
    compare_configs(kept_config(config), now, str(run_dir / "config.yaml"))
    if now.run.iterations != config.run.iterations and not from_start:
        reached = max(checkpoint_steps(run_dir / CHECKPOINTS), default=0)
        require_left(now, run_dir, reached + 1)
    return now


def describe_rate(config: Config, checkpoint: Checkpoint) -> str | None:
    """Describe how the learning rate changes where a run goes on with another number of iterations, or None.

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
        f"{planned} The learning rate is {rate(now):.3g} from here on, where the {t.schedule} schedule over {now} "
        f"iterations has it after {checkpoint.step}; the one over {was} had {rate(was):.3g}. It ends at "
        f"{t.learning_rate * t.final_learning_rate:.3g}."
    )
