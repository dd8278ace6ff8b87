"""Reward models that work on their own: `load_reward(name, **options)` returns a scorer.

This package imports nothing of diffrl and nothing of accelerate, and torch only when a scorer or a batch is made.
"""

from typing import TYPE_CHECKING, Any

from reward_models.errors import RewardError
from reward_models.registry import SCORERS, load_reward

if TYPE_CHECKING:
    from reward_models.base import RewardBatch, RewardOutput, Scorer, ScorerSpec

__all__ = ["SCORERS", "RewardBatch", "RewardError", "RewardOutput", "Scorer", "ScorerSpec", "load_reward"]


def __getattr__(name: str) -> Any:
    """The names of `base`, imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'reward_models' has no attribute {name!r}")
    from reward_models import base

    return getattr(base, name)
