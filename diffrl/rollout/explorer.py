"""What an explorer, a process elsewhere, is asked to draw and what it answers, as bytes; and a rollout of such parts.

A question is JSON. An answer is one safetensors file: the samples, and of the stochastic steps the latents and their
densities. Nothing else is sent, for all else of a rollout follows from the prompts and the configuration. Nothing here
runs what it reads: no pickle. Pure functions: the network is elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from diffrl.records import Forest, PromptBatch, Rollout
from diffrl.rollout.observers import EdgeRecorder

PROTOCOL = 1
"""What every request names in its header; it changes whenever older clients or servers would be misunderstood."""
Whole = Annotated[int, Field(ge=0, lt=2**63)]


class Asked(BaseModel):
    """What an explorer is asked for: all trees of some prompts, by certain weights.

    Args:
        facts: what samples depend on besides prompts and weights, by name; the explorer's own must be the same.
        weights: SHA-256 of the trained weights, in hexadecimal digits.
        iteration: from 0.
        groups: of the prompts in the iteration's batch; with the iteration they are the address of the noise.
        prompts: texts.
    """

    facts: dict[str, str]
    weights: str
    iteration: Whole
    groups: list[Whole]
    prompts: list[str]


def read_asked(body: bytes) -> Asked:
    """Read a question.

    Raises:
        ValueError: it is none; one line says why.
    """
    try:
        asked = Asked.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from None
    if not asked.prompts or len(asked.prompts) != len(asked.groups):
        raise ValueError(f"{len(asked.prompts)} prompts and {len(asked.groups)} groups")
    return asked


@dataclass(frozen=True)
class TreeAnswer:
    """An explorer's answer: all samples of some prompts.

    Args:
        latents: (S, ...) at sigma = 0.
        images: (S, 3, H, W) uint8 RGB, or videos (S, F, 3, H, W).
        stored: (V, ...) latents of the stochastic steps, as `Edges` stores them.
        density: (E,) float32 `old_log_prob` of these steps.
        evaluations: of the network that they took.
    """

    latents: Tensor
    images: Tensor
    stored: Tensor
    density: Tensor
    evaluations: int


def encode_answer(rollout: Rollout, evaluations: int) -> bytes:
    """Return an answer as bytes."""
    tensors = {
        "latents": rollout.latents,
        "images": rollout.images,
        "stored": rollout.edges.stored,
        "density": rollout.edges.old_log_prob,
        "evaluations": torch.tensor([evaluations]),
    }
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def decode_answer(
    body: bytes, forest: Forest, steps: Collection[int], latent_shape: Sequence[int], dtype: torch.dtype
) -> TreeAnswer:
    """Read an answer.

    Args:
        body: its bytes.
        forest: the trees that were asked for.
        steps: stochastic steps that are kept as edges.
        latent_shape: of one sample.
        dtype: of the latents that are stored.

    Raises:
        ValueError: it is not the answer to this; one line says why.
    """
    try:
        tensors = safetensors.torch.load(body)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"no safetensors file ({str(error)[:100]})") from None
    rows, edges = EdgeRecorder(forest, steps).sizes()
    expected = {
        "latents": ((len(forest), *latent_shape), torch.float32),
        "stored": ((rows, *latent_shape), dtype),
        "density": ((edges,), torch.float32),
        "evaluations": ((1,), torch.int64),
    }
    for name, (shape, kind) in expected.items():
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != tuple(shape) or tensor.dtype != kind:
            seen = "none" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            raise ValueError(f"{name} must be {kind} {tuple(shape)}, it is {seen}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{name} holds NaN or inf")
    images = tensors.get("images")
    if images is None or images.dtype != torch.uint8 or len(images) != len(forest) or images.ndim not in (4, 5):
        raise ValueError(f"images must be uint8 of {len(forest)} samples")
    evaluations = int(tensors["evaluations"])
    if evaluations < 0:
        raise ValueError("evaluations must not be negative")
    return TreeAnswer(tensors["latents"], images, tensors["stored"], tensors["density"], evaluations)


def join_answers(
    batch: PromptBatch,
    forest: Forest,
    sigmas: Tensor,
    steps: Collection[int],
    parts: Sequence[TreeAnswer],
    sizes: Sequence[int],
    device: torch.device,
) -> Rollout:
    """Return the rollout that parts make up.

    Args:
        batch: the prompts.
        forest: all of their trees.
        sigmas: (T + 1,) the grid.
        steps: stochastic steps that are kept as edges.
        parts: answers, in the order of the prompts.
        sizes: prompts of each.
        device: where the rollout lives.
    """
    first = parts[0]
    edges = EdgeRecorder(forest, steps, dtype=first.stored.dtype)
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        rows = torch.nonzero((forest.prompt >= start) & (forest.prompt < start + size)).flatten()
        edges.take(rows, part.stored.to(device), part.density.to(device), sigmas)
        start += size
    return Rollout(
        batch=batch,
        forest=forest,
        sigmas=sigmas,
        latents=torch.cat([part.latents for part in parts]).to(device),
        images=torch.cat([part.images for part in parts]),
        edges=edges.edges(),
    )
