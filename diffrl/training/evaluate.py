"""Held-out evaluation: deterministic sampling of the same prompts from the same noise, every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffrl.config.schema import EvalSettings
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.records import Prompt, RewardTable
from diffrl.rewards.score import WeightedScorer, score
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.regenerate import decode
from diffrl.rollout.tree import chains
from diffrl.training.distributed import sum_ranks


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Args:
        means: per reward, and per "reward/part", the mean over the samples that could be scored, of all ranks.
        failed: samples that could not be scored, of all ranks.
        prompts: this rank's prompts, one a sample.
        addresses: this rank's initial noises.
        images: (S, 3, H, W) uint8, this rank's pictures.
        table: their rewards.
    """

    means: dict[str, float]
    failed: int
    prompts: Sequence[Prompt]
    addresses: Sequence[Address]
    images: Tensor
    table: RewardTable


def evaluate(
    accelerator: Any,
    adapter: ModelAdapter,
    conditioning: Conditioning,
    prompts: Sequence[Prompt],
    scorers: Sequence[WeightedScorer],
    settings: EvalSettings,
    decode_batch: int,
) -> Evaluation:
    """Sample i takes prompt i modulo their number; ranks share the samples out in contiguous parts.

    Args:
        accelerator: joins the ranks.
        adapter: the policy.
        conditioning: the encoded prompts, one row a prompt.
        prompts: the held-out prompts.
        scorers: what is measured.
        settings: the eval section.
        decode_batch: samples a decoder call.
    """
    world, rank = accelerator.num_processes, accelerator.process_index
    own = range(settings.samples * rank // world, settings.samples * (rank + 1) // world)
    rows = torch.tensor([i % len(prompts) for i in own], dtype=torch.int64)
    addresses = [Address("eval", settings.seed, 0, i % len(prompts), i // len(prompts), ()) for i in own]
    sampler = Sampler(
        adapter.sigmas(settings.steps),
        solver=settings.solver,
        guidance_scale=settings.guidance_scale,
        micro_batch=settings.batch,
    )
    latents = denoise(adapter, conditioning, chains(rows), addresses, sampler).latents
    chosen = [prompts[int(row)] for row in rows]
    images = decode(adapter, latents, decode_batch, [prompt.text for prompt in chosen])
    table = score(scorers, images, chosen)
    values = {**table.raw, **table.parts}
    names = sorted(values)
    good = torch.stack([torch.isfinite(values[name]) for name in names])
    sums = torch.stack([values[name].double().nan_to_num(0.0, 0.0, 0.0) for name in names]).sum(1)
    totals = sum_ranks(accelerator, torch.cat([sums, good.sum(1).double(), (~table.ok).sum().double().reshape(1)]))
    means = {n: float(totals[i] / totals[len(names) + i]) for i, n in enumerate(names) if totals[len(names) + i] > 0}
    return Evaluation(means, int(totals[-1]), chosen, addresses, images, table)
