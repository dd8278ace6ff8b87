"""What every reward model is: a batch of pictures or videos and prompts in, one raw score a sample out.

Nothing here knows of training. A scorer reports in its own native units; scaling is the caller's business. A sample
that could not be scored is NaN with `ok = False`, never a number; a scorer that cannot work at all raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class RewardBatch:
    """Samples to score.

    Args:
        media: uint8 RGB, images (B, 3, H, W) or videos (B, F, 3, H, W). uint8, so that the score in training is the
            score of the picture as it is saved.
        prompts: B prompts.
        metadata: B mappings with what a scorer may need beside the prompt; empty mappings if nothing.
        fps: frames per second of videos.
    """

    media: Tensor
    prompts: Sequence[str]
    metadata: Sequence[Mapping[str, Any]] = ()
    fps: float | None = None

    def __post_init__(self) -> None:
        """Refuse shapes and lengths that do not belong together."""
        from reward_models.errors import RewardError

        media = self.media
        if media.dtype != torch.uint8 or media.ndim not in (4, 5) or media.shape[-3] != 3:
            raise RewardError(
                "media must be uint8 RGB of shape (B, 3, H, W) or (B, F, 3, H, W). "
                f"Got {media.dtype} of shape {tuple(media.shape)}. Convert first: (x * 255).round().to(torch.uint8)."
            )
        for name, values in (("prompts", self.prompts), ("metadata", self.metadata or self.prompts)):
            if len(values) != media.shape[0]:
                raise RewardError(
                    f"{name} must have one entry a sample. Got {len(values)} for {media.shape[0]} samples."
                )


@dataclass(frozen=True)
class RewardOutput:
    """Scores of a batch.

    Args:
        raw: (B,) float32 in the scorer's native units; NaN where not ok.
        ok: (B,) bool, False where a sample could not be scored.
        errors: B messages, None where ok.
        parts: named components of the score, (B,) float32 each (colour, count, ...).
    """

    raw: Tensor
    ok: Tensor
    errors: Sequence[str | None]
    parts: Mapping[str, Tensor] = field(default_factory=dict)


def output_of_rows(rows: Sequence[tuple[float, Mapping[str, float], str | None]], parts: Sequence[str]) -> RewardOutput:
    """The output of scorers that look at one sample after the other.

    Args:
        rows: of each sample its score, its parts and why it could not be scored, or None.
        parts: names of the parts; NaN where a row lacks one.
    """
    return RewardOutput(
        raw=torch.tensor([row[0] for row in rows], dtype=torch.float32),
        ok=torch.tensor([row[2] is None for row in rows], dtype=torch.bool),
        errors=[row[2] for row in rows],
        parts={name: torch.tensor([row[1].get(name, math.nan) for row in rows], dtype=torch.float32) for name in parts},
    )


@dataclass(frozen=True)
class ScorerSpec:
    """What a user should know of a scorer before using it."""

    name: str
    description: str
    range: tuple[float, float]
    higher_is_better: bool = True
    media: tuple[str, ...] = ("image",)
    requires: tuple[str, ...] = ()
    version: str = "1"
    code_license: str = "Apache-2.0"
    weights_license: str | None = None
    citation: str | None = None


class Scorer(Protocol):
    """Anything that scores a `RewardBatch`. The result of a sample does not depend on its batch-mates."""

    spec: ScorerSpec

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score the batch; see the module's text for failures."""
        ...

    def to(self, device: str | torch.device) -> Scorer:
        """Move weights, if there are any; returns itself."""
        ...
