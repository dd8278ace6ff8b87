"""Rewards whose weights or packages are not here: what is still known of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import cast

from diffrl.config.rewards import RewardSettings
from diffrl.cost.scorers import inner_name
from diffrl.errors import ConfigError
from diffrl.rewards.score import WeightedScorer
from reward_models import Scorer
from reward_models.registry import factory_of
from reward_models.scoring.catalogue import entry_of


def missing_package(reward: RewardSettings) -> str | None:
    """What of diffrl's extras a reward needs that is not installed here, such as "diffrl[clip]"; None if nothing."""
    entry = entry_of(inner_name(reward))
    return entry.install if entry.spec is not None else None


def unloaded(settings: Sequence[RewardSettings], where: str) -> list[WeightedScorer]:
    """Stand-ins that know what rewards look at and read, without their weights; they cannot score.

    Raises:
        ConfigError: a reward has no such options.
    """
    for number, reward in enumerate(settings):
        try:
            inspect.signature(factory_of(reward.name)).bind(**reward.options)
        except TypeError as error:
            raise ConfigError(f"{where}.{number}.options do not fit the reward {reward.name}: {error}.") from error
    return [WeightedScorer(reward.key, cast(Scorer, factory_of(reward.name))) for reward in settings]
