"""What is kept of a rollout while it is drawn: stochastic steps as edges, and predicted pictures.

Observers of `denoise`. A forest may be drawn in parts, some prompts at a time: an observer takes all parts one after
the other, with `of_whole` naming their nodes by the rows of the whole forest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from diffrl.functional.gaussian import log_prob
from diffrl.records import Edges, Forest
from diffrl.rollout.denoise import Level, Observer


def of_whole(observer: Observer, rows: Tensor) -> Observer:
    """An observer of a forest as one of a part of it.

    Args:
        observer: knows the nodes by their rows in the whole forest.
        rows: (n,) int64 row in the whole forest of each node of the part.
    """

    def renumbered(level: Level) -> None:
        branch = level.branch and replace(level.branch, children=rows[level.branch.children])
        observer(replace(level, nodes=rows[level.nodes], branch=branch))

    return renumbered


class EdgeRecorder:
    """Keeps stochastic steps as edges.

    Densities are taken of the latents as they are stored, so a recomputation under the same weights gives a ratio of
    exactly 1.

    Args:
        steps: which of them; None = all.
        prompts: only those of the first so many prompts of the batch; None = of all.
    """

    def __init__(self, steps: Collection[int] | None = None, prompts: int | None = None):
        self._steps, self._prompts = steps, prompts
        self._columns: list[tuple[Tensor, ...]] = []
        self._origins, self._parts = 0, 0

    def __call__(self, level: Level) -> None:
        """Take a level's step, if it is one to keep."""
        x = level.latents
        if not self._columns:  # so that no steps give an empty record of the right shapes
            none, index = x.new_zeros((0,)), level.nodes[:0]
            self._columns.append((x[:0], none, none, index, index, index, index, x[:0], none))
        self._parts += level.velocity is None
        if level.branch is None or (self._steps is not None and level.step not in self._steps):
            return
        branch = level.branch
        own: Tensor | slice = slice(None)
        ends: Tensor | slice = slice(None)
        place = branch.origin
        if self._prompts is not None:
            own = level.prompt < self._prompts
            ends = own[branch.origin]
            place = (own.cumsum(0) - 1)[branch.origin[ends]]
        latents, next_latents = x[own], branch.next_latents[ends]
        density = log_prob(next_latents, branch.mean[ends], branch.std[ends])
        one = latents.new_ones(len(latents), dtype=torch.float32)
        steps = torch.full((len(latents),), level.step)
        columns = (steps, level.prompt[own], place + self._origins, branch.children[ends])
        self._columns.append((latents, level.sigma * one, level.sigma_next * one, *columns, next_latents, density))
        self._origins += len(latents)

    def edges(self) -> Edges:
        """All of them, step after step, as if the parts had been drawn together."""
        columns = [torch.cat(column) for column in zip(*self._columns, strict=True)]
        edges = Edges(*(column.to(columns[0].device) for column in columns))
        return edges if self._parts < 2 else take_origins(edges, edges.step.argsort(stable=True))[0]


class PredictionRecorder:
    """Keeps the picture that the network predicts at each node, as latents; where no noise lies ahead, the end itself.

    Args:
        forest: the whole of what is drawn.
        prompts: only at nodes of the first so many prompts; None = of all.
    """

    def __init__(self, forest: Forest, prompts: int | None = None):
        self._wanted = first_prompts(forest.prompt, prompts)
        self._place = self._wanted.cumsum(0) - 1
        self._latents: Tensor | None = None

    def __call__(self, level: Level) -> None:
        """Take what is predicted where the nodes are seen first, and in the end what came of it."""
        if self._latents is None:
            self._latents = level.latents.new_zeros((int(self._wanted.sum()), *level.latents.shape[1:]))
        if level.first or level.velocity is None:
            own = self._wanted[level.nodes]
            self._latents[self._place[level.nodes[own]]] = level.predicted[own]

    @property
    def nodes(self) -> Tensor:
        """(M,) int64 nodes that are kept."""
        return torch.nonzero(self._wanted).flatten()

    @property
    def latents(self) -> Tensor:
        """(M, ...) in the order of the nodes."""
        assert self._latents is not None
        return self._latents


def first_prompts(prompt: Tensor, below: int | None) -> Tensor:
    """Which rows belong to prompts (N,) whose own row is below a number; None = all. (N,) bool."""
    return torch.ones_like(prompt, dtype=torch.bool) if below is None else prompt < below


def take_origins(edges: Edges, index: Tensor, keep: Tensor | None = None) -> tuple[Edges, Tensor]:
    """The origins at `index` with all their edges, and the rows of these edges.

    Args:
        edges: any.
        index: (B,) int64 distinct origins; their order is kept.
        keep: (E,) bool, edges that may be taken; None = all.
    """
    place = torch.full((len(edges.step),), -1, dtype=torch.int64, device=edges.step.device)
    place[index] = torch.arange(len(index), device=index.device)
    target = place[edges.origin]
    taken = target >= 0 if keep is None else (target >= 0) & keep
    rows = torch.nonzero(taken).flatten()
    rows = rows[torch.argsort(target[rows], stable=True)]
    origins = (edges.latents[index], edges.sigma[index], edges.sigma_next[index], edges.step[index])
    ends = (edges.node[rows], edges.next_latents[rows], edges.old_log_prob[rows])
    return Edges(*origins, edges.prompt[index], target[rows], *ends), rows
