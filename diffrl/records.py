"""The records that pass between the stations, in the order in which data passes them.

    PromptBatch -> Rollout -> RewardTable -> Credit -> (loss, metrics)

Every record is frozen; a station takes records and returns a new one. Shape letters, used everywhere:

    P prompts of an iteration on this rank     S samples (finished pictures)     E edges (trained denoising steps)
    T denoising steps                          ... latent dimensions (C, h, w)   B any batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One prompt with what a scorer may need beside it (an OCR target, an object list, ...)."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of one iteration on one rank.

    Args:
        prompts: P prompts.
        groups: P group ids. A group is one slot of the iteration's global batch, so two equal prompts stay two groups.
        iteration: the training iteration, from 0.
    """

    prompts: Sequence[Prompt]
    groups: Sequence[int]
    iteration: int


@dataclass(frozen=True)
class Edges:
    """Stochastic denoising steps, each one a transition with a density. One row an edge.

    Args:
        latents: (E, ...) latents before the step, as stored.
        next_latents: (E, ...) latents after the step, as stored: what was scored.
        sigma: (E,) float32 noise level before the step, in (0, 1].
        sigma_next: (E,) float32 noise level after the step, in (0, 1).
        step: (E,) int64 index of the step in the sigma grid.
        sample: (E,) int64 row of the sample whose path holds this edge.
        old_log_prob: (E,) float32 density under the policy that drew the step, averaged over latent dimensions.
    """

    latents: Tensor
    next_latents: Tensor
    sigma: Tensor
    sigma_next: Tensor
    step: Tensor
    sample: Tensor
    old_log_prob: Tensor

    def __len__(self) -> int:
        return int(self.step.shape[0])


@dataclass(frozen=True)
class Rollout:
    """Samples drawn in the training precision, with the densities that the update needs.

    Args:
        batch: the prompts they were drawn for.
        prompt: (S,) int64 row of each sample's prompt in `batch`.
        root: (S,) int64 index of each sample's initial noise within its prompt.
        sigmas: (T + 1,) float32 grid, 1 down to 0.
        images: (S, 3, H, W) uint8 RGB.
        edges: the trained steps.
    """

    batch: PromptBatch
    prompt: Tensor
    root: Tensor
    sigmas: Tensor
    images: Tensor
    edges: Edges

    def __len__(self) -> int:
        return int(self.prompt.shape[0])


@dataclass(frozen=True)
class RewardTable:
    """Rewards of S samples.

    Args:
        raw: per reward name, (S,) float32 in the scorer's units; NaN where the scorer failed.
        parts: per "reward/part", (S,) float32.
        total: (S,) float32 weighted sum of the scaled rewards; NaN where any of them failed.
        ok: (S,) bool, True where every scorer succeeded.
        errors: S messages, None where ok.
    """

    raw: Mapping[str, Tensor]
    parts: Mapping[str, Tensor]
    total: Tensor
    ok: Tensor
    errors: Sequence[str | None]


@dataclass(frozen=True)
class Credit:
    """How much each edge deserves.

    Args:
        advantage: (E,) float32; 0 for edges of samples that were left out.
        outcome: (S,) float32 advantage of each sample as a whole.
        zero_spread_groups: groups whose rewards are all equal; they train nothing.
        dropped_groups: groups left out because too few of their samples could be scored.
    """

    advantage: Tensor
    outcome: Tensor
    zero_spread_groups: int
    dropped_groups: int
