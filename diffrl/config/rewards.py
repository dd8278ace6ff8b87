"""The rewards that a policy is trained on, or measured by."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from diffrl.sections import ListOf, rule, show
from reward_models.settings import RewardSettings

__all__ = ["MayBeNone", "RewardSettings", "Rewards"]


def _distinct_rewards(rewards: tuple[RewardSettings, ...]) -> tuple[RewardSettings, ...]:
    names = [reward.key for reward in rewards]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise rule(
            f"must name each reward once. Got {show(repeated)} more than once. Add their weights up, or give "
            "each a label."
        )
    if rewards and all(reward.weight == 0 for reward in rewards):
        raise rule(f"must have a weight other than 0 somewhere. Got {show(names)}, all 0. Set one weight.")
    return rewards


MayBeNone = Annotated[ListOf[RewardSettings], Field(max_length=100), AfterValidator(_distinct_rewards)]
"""Rewards of a run that may train on none: on given pairs."""
Rewards = Annotated[MayBeNone, Field(min_length=1)]
