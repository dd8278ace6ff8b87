"""What a held-out score does not see: how different a prompt's pictures are, and how far they are from the base's.

A policy can raise its reward by drawing one picture of each prompt, or leave what the model knew behind. Both show if
some prompts are drawn several times, from the noise that the model before alignment draws them from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffrl.config.schema import EvalSettings
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.records import Prompt
from diffrl.training.evaluate import draw
from reward_models import RewardBatch, load_reward

MOST_PROMPTS = 48


def draw_several(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    prompts: Sequence[Prompt],
    settings: EvalSettings,
    decode_batch: int,
    stream: str,
    each: int,
) -> Tensor:
    """Sample the first prompts, at most `MOST_PROMPTS`, several times; the first of each is an evaluation's.

    Args:
        adapter: the policy.
        conditioning: of the prompts, a row each.
        prompts: P of them.
        settings: the eval section.
        decode_batch: samples a decoder call.
        stream: of the noise, see `data.worlds.noise_stream`.
        each: samples of a prompt.

    Returns:
        (min(P, 48), each, 3, H, W) uint8, or (..., frames, 3, H, W).
    """
    count = min(len(prompts), MOST_PROMPTS)
    places = [(row, root) for row in range(count) for root in range(each)]
    _, images = draw(adapter, conditioning, prompts, places, settings, decode_batch, stream)
    return images.unflatten(0, (count, each))


def variety(images: Tensor, base: Tensor | None) -> dict[str, float]:
    """Return diversity within prompts and the distance to the base's pictures.

    Args:
        images: (P, K, ...) uint8, K at least 2, as `draw_several` gave them.
        base: the same of the model before alignment; None without one.

    Returns:
        "diversity": mean over prompts of the reward of that name. "distance": root of the mean squared difference of
        pixels in [0, 1] to the base's picture from the same noise.
    """
    scorer = load_reward("diversity")
    spread = [scorer(RewardBatch(batch, [""] * len(batch))).raw for batch in images]
    measures = {"diversity": float(torch.cat(spread).nanmean())}
    if base is not None:
        measures["distance"] = float(((images.float() - base.float()) / 255).square().mean().sqrt())
    return measures
