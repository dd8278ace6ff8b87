"""The configuration as a checkpoint keeps it, so that a run never goes on with another one unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from diffrl.config import Config, dump_config
from diffrl.config.load import make_config
from diffrl.errors import CheckpointError, ConfigError
from diffrl.sections import show
from reward_models.common.yaml12 import Loader

MAY_CHANGE = (
    *("run.iterations", "run.checkpoint_every", "run.keep_checkpoints", "track.", "guards."),
    *("rollout.micro_batch", "rollout.decode_batch", "rollout.prompts_at_once", "eval.batch"),
    *("train.micro_batch", "train.gradient_checkpointing"),
    *("model.device", "model.offload", "model.vae_slicing", "model.vae_tiling", "model.compile"),
    *("model.init_from.run", "model.lora.start.path"),
    *("prompts.eval_on_train", "prompts.too_long", "prompts.unscored"),
)
"""Keys of config.yaml, or their beginnings, that change what is kept, watched and held in memory, how long the run is
and where what it began with lies, and not what has been trained but for rounding."""
REWARDS_MAY_CHANGE = ("batch_size", "device", "timeout", "options.url", "options.urls", "options.timeout")
"""The same of each reward: where and how fast it is computed."""


def kept_config(config: Config) -> str:
    """A configuration as YAML; where the run lies and what it is called does not matter to it."""
    anywhere = config.run.model_copy(update={"name": "run", "dir": "runs"})
    return dump_config(config.model_copy(update={"run": anywhere}))


def compare_configs(then: Any, now: Config, source: str) -> str | None:
    """What was changed in config.yaml since a checkpoint was written, where that may be; None if nothing was.

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
    """Every key whose value differs, with the values of then and now; where the run lies is left out.

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
    old, new = flat(before), flat(now.model_dump())
    keys = [key for key in {**old, **new} if key not in ("run.name", "run.dir") and old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys}


def may_change(key: str) -> bool:
    """Whether a key of config.yaml may be changed between two parts of a run."""
    if key.startswith(MAY_CHANGE):
        return True
    section, _, rest = key.removeprefix("eval.").partition(".")
    return section == "rewards" and rest.partition(".")[2].startswith(REWARDS_MAY_CHANGE)


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists as one mapping, keys and numbers joined by dots."""
    items: Any = node.items() if isinstance(node, Mapping) else enumerate(node)
    values: dict[str, Any] = {}
    for key, value in items:
        nested = isinstance(value, (Mapping, list, tuple)) and len(value) > 0
        values |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return values
