"""A forest to a `Rollout`: the samples, drawn in the training precision, that are allowed to train the policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from diffrl import pulse
from diffrl.errors import GuardStop
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.models.images import BrokenPictureError
from diffrl.models.pipeline import keep_on_device
from diffrl.records import Forest, PromptBatch, Rollout
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Observer, Sampler, denoise
from diffrl.rollout.observers import EdgeRecorder, PredictionRecorder, VisitRecorder, of_whole
from diffrl.rollout.tree import paths_to, prompt_chunks, subset

Clock = Callable[[str], AbstractContextManager[None]]


Sink = Callable[[Tensor], None]
"""Takes pictures as they come, uint8 on the CPU."""


def ignore(images: Tensor) -> None:
    """Drop what arrives."""


def no_clock(phase: str) -> AbstractContextManager[None]:
    """Return a clock that does not tick."""
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
    visit: int = 0,
    observe: Iterable[Observer] = (),
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
        visit: keep so many of each sample's first states, of chains without noise.
        observe: others that are shown every level.
        clock: entered with "rollout" around the denoising and with "decode" around the decoding.
        each: called with the pictures as they are decoded, in the order of the samples.
        prompts_at_once: prompts that are drawn together, and decoded before the next are drawn; None = all.
    """
    edges = EdgeRecorder(forest, record, dtype=sampler.latents_dtype)
    predicted = PredictionRecorder(forest) if predict else None
    visited = VisitRecorder(forest, visit) if visit else None
    observers: list[Observer] = [edges, *(one for one in (predicted, visited) if one), *observe]
    latents, images = list[Tensor](), list[Tensor]()
    for samples in prompt_chunks(forest, prompts_at_once):
        part, on_paths = subset(forest, samples), paths_to(forest, samples)
        rows = torch.nonzero(on_paths).flatten()
        addresses = [address for address, kept in zip(roots, on_paths[forest.parent < 0].tolist(), strict=True) if kept]
        with clock("rollout"):
            shown = [of_whole(observer, rows) for observer in observers]
            latents.append(denoise(adapter, conditioning, part, addresses, sampler, observe=shown))
        with clock("decode"):
            prompts = [batch.prompts[int(row)].text for row in part.sample_prompt]
            images.append(decode(adapter, latents[-1], decode_batch, prompts, each))
    whole_latents, whole_images = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in (latents, images))
    return Rollout(
        batch=batch,
        forest=forest,
        sigmas=sampler.sigmas,
        latents=whole_latents,
        images=whole_images,
        edges=edges.edges(),
        predicted=predicted.latents if predicted else None,
        visits=visited.visits if visited else None,
    )


def decode(
    adapter: ModelAdapter, latents: Tensor, decode_batch: int, prompts: Sequence[str], each: Sink = ignore
) -> Tensor:
    """Return pictures (S, 3, H, W) uint8 on the CPU.

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
    pictures: Tensor | None = None  # each call's go to their place: joined in the end, all would be there twice
    with keep_on_device(adapter, "vae"):  # it travels once for all calls
        for start in range(0, len(latents), decode_batch):
            try:
                decoded = adapter.decode(latents[start : start + decode_batch]).cpu()
            except BrokenPictureError as error:
                raise GuardStop(
                    f"The decoder gave NaN or inf for {prompts[start + error.rows[0]]!r}, whose latents are finite. "
                    "Set model.dtype to float32."
                ) from error
            if pictures is None:
                whole = len(decoded) == len(latents)
                pictures = decoded if whole else decoded.new_empty((len(latents), *decoded.shape[1:]))
            batch = pictures[start : start + decode_batch]
            if pictures is not decoded:
                batch.copy_(decoded)
            each(batch)
            pulse.advance(pulse.DECODED, len(batch))
    assert pictures is not None
    return pictures
