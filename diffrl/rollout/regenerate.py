"""Addresses to a `Rollout`: the samples, drawn in the training precision, that are allowed to train the policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.errors import GuardStop
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.models.images import BrokenPictureError
from diffrl.records import PromptBatch, Rollout
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import denoise
from diffrl.transition import Transition

Clock = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Chains:
    """Which chains of a prompt batch to draw, as arrays: one row a sample.

    Args:
        prompt: (S,) int64 row of the sample's prompt in the batch.
        root: (S,) int64 index of its initial noise within the prompt.
        addresses: S addresses of the initial noises.
    """

    prompt: Tensor
    root: Tensor
    addresses: tuple[Address, ...]


def plan_chains(batch: PromptBatch, roots: int, seed: int) -> Chains:
    """All `roots` chains of every prompt; S = P * roots, samples of a prompt side by side."""
    addresses = tuple(
        Address("train", seed, batch.iteration, group, root, ()) for group in batch.groups for root in range(roots)
    )
    prompt = torch.arange(len(batch.groups)).repeat_interleave(roots)
    return Chains(prompt, torch.arange(roots).repeat(len(batch.groups)), addresses)


def regenerate(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    batch: PromptBatch,
    chains: Chains,
    *,
    sigmas: Tensor,
    transition: Transition,
    stochastic: Collection[int],
    guidance_scale: float,
    micro_batch: int,
    decode_batch: int,
    clock: Clock = lambda phase: nullcontext(),
) -> Rollout:
    """Draw the chains and decode them.

    Args:
        adapter: the model.
        conditioning: the batch's encoded prompts, one row a prompt.
        batch: the prompts.
        chains: which samples of them.
        sigmas: (T + 1,) grid from 1 to 0.
        transition: dynamics of the stochastic steps.
        stochastic: indices of the stochastic steps.
        guidance_scale: 1 is off.
        micro_batch: samples a network call.
        decode_batch: samples a decoder call.
        clock: entered with "rollout" around the denoising and with "decode" around the decoding.
    """
    with clock("rollout"):
        latents, edges = denoise(
            adapter,
            conditioning,
            chains.prompt,
            chains.addresses,
            sigmas=sigmas,
            transition=transition,
            stochastic=stochastic,
            guidance_scale=guidance_scale,
            micro_batch=micro_batch,
        )
    with clock("decode"):
        images = decode(adapter, latents, decode_batch, [batch.prompts[int(row)].text for row in chains.prompt])
    return Rollout(batch, chains.prompt, chains.root, sigmas, images, edges)


def decode(adapter: ModelAdapter, latents: Tensor, decode_batch: int, prompts: Sequence[str]) -> Tensor:
    """Pictures (S, 3, H, W) uint8 on the CPU.

    Args:
        adapter: the model.
        latents: (S, ...) at sigma = 0.
        decode_batch: samples a decoder call.
        prompts: S prompts, to name a sample that is broken.

    Raises:
        GuardStop: NaN or inf in a sample's latents, or in what the decoder makes of them.
    """
    broken = ~torch.isfinite(latents).flatten(1).all(dim=1)
    if broken.any():
        raise GuardStop(
            f"{int(broken.sum())} of {len(broken)} samples hold NaN or inf after denoising; the first is "
            f"{prompts[int(broken.nonzero()[0])]!r}. The weights or the precision have broken down: lower "
            "train.learning_rate, or set model.dtype to float32."
        )
    pictures = []
    for start in range(0, len(latents), decode_batch):
        try:
            pictures.append(adapter.decode(latents[start : start + decode_batch]).cpu())
        except BrokenPictureError as error:
            raise GuardStop(
                f"The decoder gave NaN or inf for {prompts[start + error.rows[0]]!r}, whose latents are finite. "
                "Set model.dtype to float32."
            ) from error
    return torch.cat(pictures)
