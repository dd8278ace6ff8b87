"""The first stage: many candidates, drawn cheaply on a coarser grid, of which only pictures come back to be scored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.records import Forest, PromptBatch
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.regenerate import Clock, Sink, decode, ignore, no_clock


def explore(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    batch: PromptBatch,
    forest: Forest,
    roots: Sequence[Address],
    sampler: Sampler,
    *,
    decode_batch: int,
    clock: Clock = no_clock,
    each: Sink = ignore,
) -> Tensor:
    """Return pictures (S, 3, H, W) uint8 of a forest's candidates; neither latents nor densities are kept.

    Args:
        adapter: the model, in whatever precision.
        conditioning: the batch's encoded prompts, one row a prompt.
        batch: the prompts.
        forest: the candidates.
        roots: addresses of their initial noises.
        sampler: how latents are carried; its levels may be coarse (`counts.coarse_levels`).
        decode_batch: samples a decoder call.
        clock: entered with "explore" around the denoising and with "decode" around the decoding.
        each: called with the pictures as they are decoded, in the order of the samples.
    """
    with clock("explore"):
        latents = denoise(adapter, conditioning, forest, roots, sampler)
    with clock("decode"):
        prompts = [batch.prompts[int(row)].text for row in forest.sample_prompt]
        return decode(adapter, latents, decode_batch, prompts, each)


def prompt_samples(forest: Forest) -> list[Tensor]:
    """Return rows of each prompt's samples, in the order of the prompts."""
    prompt = forest.sample_prompt
    return [torch.nonzero(prompt == row).flatten() for row in prompt.unique()]
