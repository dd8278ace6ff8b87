"""Rewards with a known fault, on the world of shapes: what a run that trains on them does is measured, not guessed."""

from __future__ import annotations

from dataclasses import replace

import torch

from reward_models import RewardBatch, RewardOutput, ScorerSpec, load_reward


class Saturated:
    """1 for almost every image: the graded score of shapes, ten times over and cut at 1."""

    spec = ScorerSpec("saturated", "graded score of shapes, x 10, at most 1", (0.0, 1.0))

    def __init__(self) -> None:
        self._shapes = load_reward("shapes")

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Return the reward of each image."""
        output = self._shapes(batch)
        return replace(output, raw=(10 * output.raw).clamp(max=1.0), parts={})

    def to(self, device: torch.device) -> Saturated:
        """Stay on the CPU."""
        return self


class ColourBlind(Saturated):
    """The graded score of shapes plus how colourful the image is, whatever was asked for."""

    spec = ScorerSpec("colour_blind", "graded score of shapes + colourfulness / 50", (0.0, 10.0))

    def __init__(self) -> None:
        super().__init__()
        self._colourfulness = load_reward("colourfulness")

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Return the reward of each image."""
        output = self._shapes(batch)
        return replace(output, raw=output.raw + self._colourfulness(batch).raw / 50, parts={})
