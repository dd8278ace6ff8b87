"""Which prompts an iteration trains on: shuffled epochs, as a pure function of seed and iteration.

There is no state, so a resumed run stands where it stood, and every rank knows the whole batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diffrl.records import Prompt, PromptBatch


def prompt_indices(count: int, per_iteration: int, seed: int, iteration: int) -> list[int]:
    """Indices of an iteration's prompts: positions of an endless row of independently shuffled epochs.

    Args:
        count: prompts in the list.
        per_iteration: prompts an iteration takes; it may be larger than `count`.
        seed: of the shuffles.
        iteration: from 0.
    """
    start = iteration * per_iteration
    positions = range(start, start + per_iteration)
    orders = {
        epoch: np.random.default_rng([seed, epoch]).permutation(count) for epoch in {p // count for p in positions}
    }
    return [int(orders[p // count][p % count]) for p in positions]


def prompt_batch(
    prompts: Sequence[Prompt], per_iteration: int, seed: int, iteration: int, rank: int = 0, world_size: int = 1
) -> PromptBatch:
    """This rank's prompts of an iteration: a contiguous part of the global batch, group ids counted globally.

    Raises:
        ValueError: the ranks would not all get the same number.
    """
    if per_iteration % world_size:
        raise ValueError(f"per_iteration {per_iteration} is not a multiple of world_size {world_size}")
    per_rank = per_iteration // world_size
    indices = prompt_indices(len(prompts), per_iteration, seed, iteration)
    groups = range(rank * per_rank, (rank + 1) * per_rank)
    epochs = [(iteration * per_iteration + g) // len(prompts) for g in groups]
    taken = [
        captioned(prompts[indices[g]], f"{seed} {epoch} {indices[g]}") for g, epoch in zip(groups, epochs, strict=True)
    ]
    return PromptBatch(tuple(taken), tuple(groups), iteration)


def captioned(prompt: Prompt, address: str) -> Prompt:
    """Return a prompt with the one of its captions that follows from an address; itself where it has one text."""
    if not prompt.captions:
        return prompt
    number = int.from_bytes(hashlib.sha256(f"caption {address}".encode()).digest()[:8], "big")
    return replace(prompt, text=prompt.captions[number % len(prompt.captions)], captions=())
