"""What is kept of a rollout while it is sampled: stochastic steps as edges, visited states, and predicted images.

Observers of `denoise`. A forest may be sampled in parts, some prompts at a time: an observer takes all parts one after
the other, with `of_whole` naming their nodes by the rows of the whole forest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from diffrl.functional.gaussian import log_prob
from diffrl.records import Edges, Forest, Visits
from diffrl.rollout.denoise import Level, Observer


def of_whole(observer: Observer, rows: Tensor) -> Observer:
    """Return an observer of a forest as one of a part of it.

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

    The latents of a rollout are most of its memory, and nearly all are both the end of a step and the origin of the
    next, so they are stored once. The forest is known beforehand: each is written to its final row as it is sampled.

        a ──┬── b ──── d      edges end in b, c and d; their origins are a, of two, and b
            └── c

        stored (V, ...)   b  c  d │ a     ends by node, then origins in which no recorded edge ends (`_fresh`)
        before (U,)       3  0            rows of a and b
        after  (E,)       0  1  2         rows of b, c and d

    Densities are of the latents as stored, so a recomputation under the same weights gives a ratio of exactly 1.

    Args:
        forest: the whole of what is drawn.
        steps: which of its stochastic steps; None = all.
        prompts: only those of the first so many prompts of the batch; None = of all.
        dtype: of the stored latents, which are drawn rounded to it (`Sampler.latents_dtype`); None = as drawn.
    """

    def __init__(
        self,
        forest: Forest,
        steps: Collection[int] | None = None,
        prompts: int | None = None,
        dtype: torch.dtype | None = None,
    ):
        wanted = (forest.step >= 0) & first_prompts(forest.prompt, prompts)
        if steps is not None:
            wanted &= torch.isin(forest.step, torch.tensor(list(steps), dtype=torch.int64))
        self._node = torch.nonzero(wanted).flatten()
        parents, self._origin = forest.parent[self._node].unique(return_inverse=True)
        self._parents = parents
        self._end_at, self._origin_at = torch.full((2, len(forest.parent)), -1).unbind()  # by node of the forest
        self._end_at[self._node] = torch.arange(len(self._node))
        self._origin_at[parents] = torch.arange(len(parents))
        self._prompt, self._step = forest.prompt[parents], torch.zeros_like(parents)
        self._step[self._origin] = forest.step[self._node]
        self._fresh = (self._end_at[parents] < 0) | (forest.step[parents] != self._step - 1)
        behind = len(self._node) + self._fresh.cumsum(0) - 1
        self._before = torch.where(self._fresh, behind, self._end_at[parents])
        self._stored: Tensor | None = None
        self._dtype = dtype

    def __call__(self, level: Level) -> None:
        """Take a level's step, if it is one to keep."""
        if self._stored is None:
            x = level.latents
            self._stored = x.new_empty((self.sizes()[0], *x.shape[1:]), dtype=self._dtype)
            self._sigmas = x.new_full((2, len(self._before)), torch.nan, dtype=torch.float32)
            self._density = x.new_full((len(self._node),), torch.nan, dtype=torch.float32)
        branch = level.branch
        if branch is None or not (wanted := self._end_at[branch.children] >= 0).any():
            return
        ends, kept = _span(torch.nonzero(wanted).flatten()), _span(self._end_at[branch.children[wanted]])
        self._stored[kept] = branch.next_latents[ends]
        self._density[kept] = log_prob(self._stored[kept], branch.mean[ends], branch.std[ends])
        origin = self._origin_at[level.nodes]
        rows_in, rows_out = torch.nonzero(origin >= 0).flatten(), origin[origin >= 0]
        self._sigmas[0, _span(rows_out)], self._sigmas[1, _span(rows_out)] = level.sigma, level.sigma_next
        fresh = self._fresh[rows_out]
        if fresh.any():
            self._stored[_span(self._before[rows_out[fresh]])] = level.latents[_span(rows_in[fresh])]

    def take(self, rows: Tensor, stored: Tensor, density: Tensor, sigmas: Tensor) -> None:
        """Take the steps of a part of the forest that another recorder has kept: `stored` and `old_log_prob` there.

        Args:
            rows: (n,) int64 nodes of the part, all trees of some prompts.
            stored: its latents, as its `edges` have them.
            density: (E,) float32 of its steps.
            sigmas: (T + 1,) float32 the grid.
        """
        inside = torch.zeros(len(self._end_at), dtype=torch.bool)
        inside[rows] = True
        if self._stored is None:
            self._stored = stored.new_empty((self.sizes()[0], *stored.shape[1:]), dtype=self._dtype)
            grid, step = sigmas.to(stored.device), self._step.to(stored.device)
            self._sigmas = torch.stack([grid[step], grid[step + 1]])
            self._density = stored.new_full((len(self._node),), torch.nan, dtype=torch.float32)
        ends = torch.nonzero(inside[self._node]).flatten()
        fresh = self._before[inside[self._parents] & self._fresh]
        self._stored[torch.cat([ends, fresh]).to(stored.device)] = stored
        self._density[ends.to(density.device)] = density

    def sizes(self) -> tuple[int, int]:
        """Return how many latents are stored, and how many steps are kept."""
        return len(self._node) + int(self._fresh.sum()), len(self._node)

    def edges(self) -> Edges:
        """Return all of them, step after step, whether or not the forest was drawn in parts."""
        assert self._stored is not None
        ends = torch.arange(len(self._node))
        columns = (self._before, self._step, self._prompt, self._origin, self._node, ends)
        sent = torch.cat(columns).to(self._stored.device).split([len(column) for column in columns])
        before, step, prompt, origin, node, after = sent
        return Edges(
            stored=self._stored,
            before=before,
            sigma=self._sigmas[0],
            sigma_next=self._sigmas[1],
            step=step,
            prompt=prompt,
            origin=origin,
            node=node,
            after=after,
            old_log_prob=self._density,
        )


def _span(rows: Tensor) -> slice | Tensor:
    """Return ascending rows (n,), n >= 1, as a slice if none is left out: the device then waits for no index."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


class VisitRecorder:
    """Keeps the first states of chains that no noise enters, and the velocities that left them.

    Args:
        forest: the whole of what is drawn on all levels of the grid; no step of it is stochastic.
        levels: how many states of each sample.
    """

    def __init__(self, forest: Forest, levels: int):
        self._sample = torch.full_like(forest.parent, -1)
        self._sample[forest.leaf] = torch.arange(len(forest))
        self._shape = len(forest), levels
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None

    def __call__(self, level: Level) -> None:
        """Take a level's states, if it is one of the first."""
        x, v = level.latents, level.velocity
        if level.step >= self._shape[1] or v is None:
            return
        if self._kept is None:
            states = x.new_zeros((*self._shape, *x.shape[1:]), dtype=torch.float32)
            self._kept = states, torch.zeros_like(states), x.new_zeros(self._shape, dtype=torch.float32)
        rows = self._sample[level.nodes].to(x.device)
        for kept, column in zip(self._kept, (x, v, level.sigma), strict=True):
            kept[rows, level.step] = column.to(kept.dtype)

    @property
    def visits(self) -> Visits:
        """The states, those of a sample side by side."""
        assert self._kept is not None
        return Visits(*(kept.flatten(0, 1) for kept in self._kept))


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
            wanted = self._wanted[level.nodes]
            self._latents[self._place[level.nodes[wanted]]] = level.predicted[wanted]

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
    """Return which rows belong to prompts (N,) whose own row is below a number; None = all. (N,) bool."""
    return torch.ones_like(prompt, dtype=torch.bool) if below is None else prompt < below


def take_origins(edges: Edges, index: Tensor, keep: Tensor | None = None) -> tuple[Edges, Tensor]:
    """Return the origins at `index` with all their edges, and the rows of these edges; latents are shared, not copied.

    Args:
        edges: any.
        index: (B,) int64 distinct origins; their order is kept.
        keep: (E,) bool, edges that may be taken; None = all.
    """
    positions = torch.full((len(edges.step),), -1, dtype=torch.int64, device=edges.step.device)
    positions[index] = torch.arange(len(index), device=index.device)
    target = positions[edges.origin]
    taken = target >= 0 if keep is None else (target >= 0) & keep
    rows = torch.nonzero(taken).flatten()
    rows = rows[torch.argsort(target[rows], stable=True)]
    origins = (edges.before, edges.sigma, edges.sigma_next, edges.step, edges.prompt)
    ends = (edges.node, edges.after, edges.old_log_prob)
    columns = (*(column[index] for column in origins), target[rows], *(column[rows] for column in ends))
    return Edges(edges.stored, *columns), rows
