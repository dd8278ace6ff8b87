"""Reward models that work on their own: `load_reward(name, **options)` returns a scorer.

This package imports nothing of diffrl and nothing of accelerate.
"""

from reward_models.base import RewardBatch, RewardOutput, Scorer, ScorerSpec
from reward_models.errors import RewardError
from reward_models.registry import SCORERS, load_reward

__all__ = ["SCORERS", "RewardBatch", "RewardError", "RewardOutput", "Scorer", "ScorerSpec", "load_reward"]
