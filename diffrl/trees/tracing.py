"""What an iteration keeps of its first prompts, beside what trains, for the trees that people look at later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffrl.config.schema import Config
from diffrl.records import Edges, Forest, Rollout
from diffrl.rollout.denoise import first_prompts, take_origins
from diffrl.rollout.regenerate import Clock, no_clock
from diffrl.trees.illustrations import illustration, most


@dataclass(frozen=True)
class Trace:
    """Of the first prompts of an iteration, what drawing them would else have let go of.

    Args:
        prompts: how many.
        nodes: (M,) int64 nodes of the rollout's forest that belong to them.
        predicted: (M, ...) the picture that the network predicted at each of these nodes, as latents.
        edges: their stochastic steps; empty where no step is stochastic.
        proxies: illustrations of those of their candidates that are kept, by the pool's sample; None without a pool.
        explored: words on how the pool was drawn, as `TreeRecord` has them; None without a pool.
    """

    prompts: int
    nodes: Tensor
    predicted: Tensor
    edges: Edges
    proxies: Mapping[int, Tensor] | None = None
    explored: Mapping[str, Any] | None = None


def keeps_trees(config: Config, iteration: int) -> bool:
    """Whether trees of a training iteration, from 0, are kept: of the first, of every n-th and of the last."""
    trees, run = config.track.trees, config.run
    if trees is None:
        return False
    every = run.eval_every if trees.every is None else trees.every
    return iteration in (0, run.iterations - 1) or (every is not None and iteration % every == 0)


def traced_prompts(config: Config, iteration: int, prompts: int) -> int:
    """How many of a rank's prompts are kept as trees in an iteration."""
    return min(config.track.trees.prompts, prompts) if config.track.trees and keeps_trees(config, iteration) else 0


def take_trace(rollout: Rollout, prompts: int, predicts: bool, keeps_steps: bool) -> tuple[Rollout, Trace | None]:
    """A rollout as it would be if nothing were kept of it, and what is kept.

    Args:
        rollout: drawn with `predict` and all steps recorded, of the first prompts at least.
        prompts: to keep; 0 leaves the rollout as it is.
        predicts: the rollout needs the predictions itself, so they are those of all prompts.
        keeps_steps: the same of the steps.
    """
    if not prompts:
        return rollout, None
    assert rollout.predicted is not None
    own = first_prompts(rollout.forest.prompt, prompts)
    nodes, edges = torch.nonzero(own).flatten(), rollout.edges
    trace = Trace(
        prompts,
        nodes,
        rollout.predicted[nodes.to(rollout.predicted.device)] if predicts else rollout.predicted,
        take_origins(edges, torch.nonzero(first_prompts(edges.prompt, prompts)).flatten())[0],
    )
    none = torch.zeros(0, dtype=torch.int64, device=edges.step.device)
    return replace(
        rollout,
        predicted=rollout.predicted if predicts else None,
        edges=edges if keeps_steps else take_origins(edges, none)[0],
    ), trace


class FirstPictures:
    """A sink that holds illustrations of the first pictures that come and lets everything else go.

    Which candidates are kept is known only when all are drawn and chosen from; until then these small copies are held.

    Args:
        count: how many it holds.
        clock: entered with "trees" while it makes them, within whatever phase the pictures come from.
    """

    def __init__(self, count: int, clock: Clock = no_clock):
        self._count, self._clock, self._held = count, clock, list[Tensor]()

    def add(self, images: Tensor) -> None:
        """Take the next pictures, uint8."""
        if len(self._held) == self._count:
            return
        with self._clock("trees"):
            for image in images[: self._count - len(self._held)]:
                # A view would hold the whole batch.
                self._held.append(illustration(image).clone())

    def kept(self, forest: Forest, chosen: Tensor, asked: int | None) -> dict[int, Tensor]:
        """Those that trees show, by the pool's sample: of each prompt so many, the ones drawn again first.

        Args:
            forest: of the pool.
            chosen: (K,) int64 samples of the pool that are drawn again.
            asked: track.trees.pictures.
        """
        again, kept = set(chosen.tolist()), dict[int, Tensor]()
        prompts = forest.sample_prompt[: len(self._held)].tolist()
        for prompt in dict.fromkeys(prompts):
            own = [place for place, other in enumerate(prompts) if other == prompt]
            first = sorted(own, key=lambda place: place not in again)
            kept |= {place: self._held[place] for place in first[: most(asked, self._held[0])]}
        return kept
