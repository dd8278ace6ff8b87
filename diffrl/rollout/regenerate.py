"""A forest to a `Rollout`: the samples, drawn in the training precision, that are allowed to train the policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace

import torch
from torch import Tensor

from diffrl.errors import GuardStop
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.models.images import BrokenPictureError
from diffrl.records import Edges, Forest, PromptBatch, Rollout
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Denoised, Sampler, denoise, first_prompts, take_origins
from diffrl.rollout.tree import paths_to, prompts_apart, subset

Clock = Callable[[str], AbstractContextManager[None]]


Sink = Callable[[Tensor], None]
"""Takes pictures as they come, uint8 on the CPU."""


def ignore(images: Tensor) -> None:
    """A sink that wants nothing."""


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
    record_first: int | None = None,
    predict_first: int | None = None,
    clock: Clock = no_clock,
    each: Sink = ignore,
    prompts_at_once: int | None = None,
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
        record_first: as in `denoise`.
        predict_first: as in `denoise`.
        clock: entered with "rollout" around the denoising and with "decode" around the decoding.
        each: called with the pictures as they are decoded, in the order of the samples.
        prompts_at_once: prompts that are drawn together, and decoded before the next are drawn; None = all.
    """
    parts = []
    for samples in prompts_apart(forest, prompts_at_once):
        part = subset(forest, samples)
        nodes = paths_to(forest, samples)
        own = [address for address, kept in zip(roots, nodes[forest.parent < 0].tolist(), strict=True) if kept]
        with clock("rollout"):
            drawn = denoise(
                adapter,
                conditioning,
                part,
                own,
                sampler,
                record=record,
                predict=predict,
                record_first=record_first,
                predict_first=predict_first,
            )
        with clock("decode"):
            prompts = [batch.prompts[int(row)].text for row in part.sample_prompt]
            images = decode(adapter, drawn.latents, decode_batch, prompts, each)
        parts.append((nodes, drawn, images))
    whole = join([(nodes, drawn) for nodes, drawn, _ in parts], first_prompts(forest.prompt, predict_first))
    return Rollout(
        batch,
        forest,
        sampler.sigmas,
        whole.latents,
        torch.cat([images for _, _, images in parts]),
        whole.edges,
        whole.predicted,
    )


def join(parts: Sequence[tuple[Tensor, Denoised]], wanted: Tensor) -> Denoised:
    """What was drawn of a forest's prompts, a few at a time, as if all had been drawn together.

    Args:
        parts: in the order of the prompts: (N,) bool, the nodes of the whole that were drawn, and what came of them.
        wanted: (N,) bool, the nodes whose predicted pictures were asked for.
    """
    if len(parts) == 1:
        return parts[0][1]
    rows = [torch.nonzero(nodes).flatten() for nodes, _ in parts]
    edges = [drawn.edges for _, drawn in parts]
    origins = [0, *itertools.accumulate(len(own.step) for own in edges)]
    moved = [
        replace(own, origin=own.origin + first, node=row.to(own.node.device)[own.node])
        for own, first, row in zip(edges, origins, rows, strict=False)
    ]
    joined = Edges(*(torch.cat([getattr(own, f.name) for own in moved]) for f in fields(Edges)))
    predicted = [drawn.predicted for _, drawn in parts if drawn.predicted is not None]
    return Denoised(
        torch.cat([drawn.latents for _, drawn in parts]),
        take_origins(joined, joined.step.argsort(stable=True))[0],  # step after step, as when drawn together
        torch.cat(predicted)[torch.cat([row[wanted[row]] for row in rows]).argsort()] if predicted else None,
    )


def decode(
    adapter: ModelAdapter, latents: Tensor, decode_batch: int, prompts: Sequence[str], each: Sink = ignore
) -> Tensor:
    """Pictures (S, 3, H, W) uint8 on the CPU.

    Args:
        adapter: the model.
        latents: (S, ...) at sigma = 0.
        decode_batch: samples a decoder call.
        prompts: S prompts, to name a sample that is broken.
        each: called with each call's pictures.

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
        each(pictures[-1])
    return torch.cat(pictures)
