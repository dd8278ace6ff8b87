"""A forest to a `Rollout`: the samples, drawn in the training precision, that are allowed to train the policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from diffrl.errors import GuardStop
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.models.images import BrokenPictureError
from diffrl.records import Forest, PromptBatch, Rollout
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise

Clock = Callable[[str], AbstractContextManager[None]]


def no_clock(phase: str) -> AbstractContextManager[None]:
    """A clock that does not tick."""
    return nullcontext()


def regenerate(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    batch: PromptBatch,
    forest: Forest,
    roots: Sequence[Address],
    sampler: Sampler,
    *,
    record: Collection[int],
    decode_batch: int,
    predict: bool = False,
    clock: Clock = no_clock,
) -> Rollout:
    """Draw a forest's samples and decode them.

    Args:
        adapter: the model, in the training precision.
        conditioning: the batch's encoded prompts, one row a prompt.
        batch: the prompts.
        forest: which samples of them.
        roots: addresses of the forest's initial noises.
        sampler: how latents are carried.
        record: stochastic steps that are kept as edges.
        decode_batch: samples a decoder call.
        predict: keep the picture predicted at every node.
        clock: entered with "rollout" around the denoising and with "decode" around the decoding.
    """
    with clock("rollout"):
        drawn = denoise(adapter, conditioning, forest, roots, sampler, record=record, predict=predict)
    with clock("decode"):
        prompts = [batch.prompts[int(row)].text for row in forest.sample_prompt]
        images = decode(adapter, drawn.latents, decode_batch, prompts)
    return Rollout(batch, forest, sampler.sigmas, drawn.latents, images, drawn.edges, drawn.predicted)


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
