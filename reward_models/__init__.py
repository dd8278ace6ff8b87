"""Reward models that work on their own: `load_reward(name, **options)` returns a scorer.

This package imports nothing of diffrl and nothing of accelerate, and torch only when a scorer or a batch is made.
"""

from typing import TYPE_CHECKING, Any

from reward_models.common.errors import RewardError
from reward_models.registry import SCORERS, load_reward

if TYPE_CHECKING:
    from reward_models.base import RewardBatch, RewardOutput, Scorer, ScorerSpec
    from reward_models.contract import check_scorer
    from reward_models.media import score_media

_ELSEWHERE = {
    "RewardBatch": "base",
    "RewardOutput": "base",
    "Scorer": "base",
    "ScorerSpec": "base",
    "check_scorer": "contract",
    "score_media": "media",
}

__all__ = [
    "SCORERS",
    "RewardBatch",
    "RewardError",
    "RewardOutput",
    "Scorer",
    "ScorerSpec",
    "check_scorer",
    "load_reward",
    "score_media",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs torch when it is first used."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'reward_models' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"reward_models.{_ELSEWHERE[name]}"), name)
