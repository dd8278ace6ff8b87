"""Pictures to a `RewardTable`: every configured scorer, scaled and summed, raw values kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.records import Prompt, RewardTable
from reward_models import RewardBatch, Scorer


@dataclass(frozen=True)
class WeightedScorer:
    """A scorer and what its score is worth: `weight * (raw - shift) / scale`; `fps` of the videos it is given."""

    name: str
    scorer: Scorer
    weight: float = 1.0
    shift: float = 0.0
    scale: float = 1.0
    batch_size: int = 256
    fps: float | None = None


def score(scorers: Sequence[WeightedScorer], images: Tensor, prompts: Sequence[Prompt]) -> RewardTable:
    """Score S samples with every scorer.

    Args:
        scorers: at least one.
        images: (S, 3, H, W) or (S, F, 3, H, W) uint8 RGB.
        prompts: S prompts.

    Returns:
        The table. A sample that a scorer with a weight failed on has `ok = False`, a NaN total and the first message.
    """
    count = len(prompts)
    total, ok = torch.zeros(count), torch.ones(count, dtype=torch.bool)
    errors: list[str | None] = [None] * count
    raw: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    for weighted in scorers:
        values, good, messages, components = _score_in_batches(weighted, images, prompts)
        raw[weighted.name] = values
        parts.update({f"{weighted.name}/{part}": tensor for part, tensor in components.items()})
        if weighted.weight == 0:  # only watched: its failures harm nobody
            continue
        total = total + weighted.weight * (values - weighted.shift) / weighted.scale
        ok &= good
        errors = [
            old if old else (f"{weighted.name}: {new}" if new else None)
            for old, new in zip(errors, messages, strict=True)
        ]
    return RewardTable(raw, parts, torch.where(ok, total, torch.nan), ok, errors)


def _score_in_batches(
    weighted: WeightedScorer, images: Tensor, prompts: Sequence[Prompt]
) -> tuple[Tensor, Tensor, list[str | None], dict[str, Tensor]]:
    """One scorer over all samples; a value that is not finite counts as a failure."""
    outputs = []
    for start in range(0, len(prompts), weighted.batch_size):
        piece = prompts[start : start + weighted.batch_size]
        media = images[start : start + weighted.batch_size]
        texts, metadata = [p.text for p in piece], [p.metadata for p in piece]
        outputs.append(weighted.scorer(RewardBatch(media, texts, metadata, weighted.fps)))
    raw = torch.cat([output.raw.float().cpu() for output in outputs])
    reported = torch.cat([output.ok.cpu() for output in outputs])
    finite = torch.isfinite(raw)
    errors = [message for output in outputs for message in output.errors]
    errors = [
        message if message or (finite[i] and reported[i]) else f"returned {raw[i].item()}"
        for i, message in enumerate(errors)
    ]
    parts = {name: torch.cat([output.parts[name].float().cpu() for output in outputs]) for name in outputs[0].parts}
    good = reported & finite
    return raw.masked_fill(~good, torch.nan), good, errors, parts
