"""From noise to clean latents along a sigma grid, keeping the stochastic steps as edges.

All trees advance together, one level of the grid at a time; the network sees a level's nodes once, in micro-batches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.functional.dynamics import ab2_step, ode_step
from diffrl.functional.gaussian import log_prob
from diffrl.models.adapter import Conditioning, ModelAdapter, take_rows
from diffrl.records import Edges, Forest
from diffrl.rollout.address import Address
from diffrl.rollout.noise import noise_at, sibling_noise
from diffrl.rollout.transition import Transition
from diffrl.rollout.tree import SHARED


def batched_velocity(
    adapter: ModelAdapter,
    latents: Tensor,
    sigma: Tensor,
    conditioning: Conditioning,
    rows: Tensor,
    guidance_scale: float,
    micro_batch: int,
) -> Tensor:
    """Velocities (B, ...) of latents (B, ...), at most `micro_batch` samples a network call.

    Args:
        adapter: the model.
        latents: (B, ...).
        sigma: (B,) noise levels.
        conditioning: encoded prompts, one row a prompt.
        rows: (B,) int64, the row of each sample's prompt.
        guidance_scale: 1 is off.
        micro_batch: samples a call.
    """
    pieces = [
        adapter.velocity(x, s, take_rows(conditioning, r), guidance_scale)
        for x, s, r in zip(latents.split(micro_batch), sigma.split(micro_batch), rows.split(micro_batch), strict=True)
    ]
    return torch.cat(pieces)


@dataclass(frozen=True)
class Sampler:
    """How latents are carried from noise to picture.

    Args:
        sigmas: (T + 1,) the full grid, from 1 to 0.
        levels: indices of the grid that are visited, ascending from 0 to T; None = all.
        transition: dynamics of the stochastic steps; None if there are none.
        correlation: weight c of a sibling's own noise against the noise it shares.
        solver: of the deterministic steps: `ode` is Euler, `ab2` two-step Adams-Bashforth, anew after noise.
        guidance_scale: 1 is off.
        micro_batch: samples a network call.
    """

    sigmas: Tensor
    levels: Sequence[int] | None = None
    transition: Transition | None = None
    correlation: float = 4.0
    solver: str = "ode"
    guidance_scale: float = 1.0
    micro_batch: int = 128

    @property
    def grid(self) -> tuple[int, ...]:
        """The visited indices."""
        return tuple(range(len(self.sigmas)) if self.levels is None else self.levels)


@dataclass(frozen=True)
class Denoised:
    """What denoising a forest gives.

    Args:
        latents: (S, ...) at sigma = 0.
        edges: the recorded steps.
        predicted: (N, ...) latents of the picture predicted at each node, or of those asked for; None if none were.
    """

    latents: Tensor
    edges: Edges
    predicted: Tensor | None


@torch.no_grad()
def denoise(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    forest: Forest,
    roots: Sequence[Address],
    sampler: Sampler,
    *,
    record: Collection[int] = (),
    predict: bool = False,
    record_first: int | None = None,
    predict_first: int | None = None,
) -> Denoised:
    """Draw a forest's samples; a path that several samples share is walked once.

    Args:
        adapter: the model.
        conditioning: encoded prompts, one row a prompt.
        forest: what to draw; its stochastic steps lie on the sampler's grid, and none is the last step.
        roots: addresses of its initial noises, in the order of its roots; all other noise is addressed below them.
        sampler: how.
        record: stochastic steps that are kept as edges.
        predict: keep the picture predicted at every node.
        record_first: record only steps of prompts whose row is below it; None = of all.
        predict_first: predict only at nodes of such prompts, (M, ...) in the order of the nodes; None = at all.

    Returns:
        Densities are taken of the latents as they are stored, so a recomputation under the same weights gives a ratio
        of exactly 1.
    """
    x = adapter.init_latents(lambda shape: noise_at(roots, shape))
    device, grid = x.device, sampler.grid
    sigmas, rows = sampler.sigmas.to(device), forest.prompt.to(device)
    alive = torch.arange(len(roots))  # the node that each row of x continues
    paths = list(roots)
    edges = _EdgeList(x)
    traced = first_prompts(forest.prompt, record_first)
    predicted = _Predictions(x, first_prompts(forest.prompt, predict_first)) if predict else None
    previous: tuple[Tensor, Tensor] | None = None  # velocity and sigma of a deterministic step just before
    for i, i_next in zip(grid, grid[1:], strict=False):
        sigma, sigma_next = sigmas[i].expand(len(x)), sigmas[i_next].expand(len(x))
        v = batched_velocity(adapter, x, sigma, conditioning, rows[alive], sampler.guidance_scale, sampler.micro_batch)
        if predicted is not None and previous is None:
            predicted.put(alive, x - sigmas[i] * v)
        if i not in forest.branching:
            step = ode_step(x, v, sigma, sigma_next)
            if sampler.solver == "ab2" and previous is not None:
                step = ab2_step(x, v, previous[0], sigma, sigma_next, previous[1])
            x, previous = step.mean.to(x.dtype), (v, sigma)
            paths = [path._replace(path=path.path + (0,) * (i_next - i)) for path in paths]
            continue
        assert sampler.transition is not None and i_next == i + 1
        children = torch.nonzero(forest.step == i).flatten()
        origin = torch.searchsorted(alive, forest.parent[children])
        noise, paths = _noise_of(forest, children, [paths[row] for row in origin.tolist()], i, x, sampler.correlation)
        mean, std = sampler.transition(x, v, sigma, sigma_next)
        mean, std = mean[origin], std.expand(len(x), *std.shape[1:])[origin]
        x_next = (mean + std * noise).to(x.dtype)
        if i in record:
            own: Tensor | slice = slice(None)
            ends: Tensor | slice = slice(None)
            place = origin
            if record_first is not None:
                own, ends = traced[alive], traced[children]
                place = (own.cumsum(0) - 1)[origin[ends]]
            density = log_prob(x_next[ends], mean[ends], std[ends])
            edges.add(
                x[own], sigma[own], sigma_next[own], i, rows[alive[own]], place, children[ends], x_next[ends], density
            )
        x, alive, previous = x_next, children, None
    latents = x[torch.searchsorted(alive, forest.leaf)]
    if predicted is not None:
        predicted.put(alive, x)  # without noise ahead the end is known
    return Denoised(latents, edges.record(), predicted.latents if predicted is not None else None)


def first_prompts(prompt: Tensor, below: int | None) -> Tensor:
    """Which rows belong to prompts (N,) whose own row is below a number; None = all. (N,) bool."""
    return torch.ones_like(prompt, dtype=torch.bool) if below is None else prompt < below


def _noise_of(
    forest: Forest, children: Tensor, parents: Sequence[Address], step: int, like: Tensor, correlation: float
) -> tuple[Tensor, list[Address]]:
    """Noise (M, ...) of nodes that end a stochastic step, and their addresses."""
    paths = [parent.child(k) for parent, k in zip(parents, forest.child[children].tolist(), strict=True)]
    shape = tuple(like.shape[1:])
    noise = noise_at(paths, shape)
    if forest.branching[step] > 1:
        families = list(dict.fromkeys(parents))
        row = {parent: i for i, parent in enumerate(families)}
        shared = noise_at([parent.child(SHARED) for parent in families], shape)
        noise = sibling_noise(shared[[row[parent] for parent in parents]], noise, correlation)
    return noise.to(like.device), paths


class _Predictions:
    """Predicted latents of some of a forest's nodes, side by side."""

    def __init__(self, like: Tensor, wanted: Tensor):
        self.latents = like.new_zeros((int(wanted.sum()), *like.shape[1:]))
        self._wanted, self._place = wanted, wanted.cumsum(0) - 1

    def put(self, nodes: Tensor, latents: Tensor) -> None:
        own = self._wanted[nodes]
        self.latents[self._place[nodes[own]]] = latents[own]


class _EdgeList:
    """Edges of step after step, joined at the end into one record; no steps give an empty one."""

    def __init__(self, like: Tensor):
        none, index = like.new_zeros((0,)), torch.zeros((0,), dtype=torch.int64, device=like.device)
        self._like = like
        self._columns = [(like[:0], none, none, index, index, index, index, like[:0], none)]
        self._origins = 0

    def add(
        self,
        x: Tensor,
        sigma: Tensor,
        sigma_next: Tensor,
        step: int,
        prompt: Tensor,
        origin: Tensor,
        node: Tensor,
        x_next: Tensor,
        density: Tensor,
    ) -> None:
        device = self._like.device
        steps = torch.full((len(x),), step, device=device)
        origin = origin.to(device) + self._origins
        self._columns.append((x, sigma, sigma_next, steps, prompt, origin, node.to(device), x_next, density))
        self._origins += len(x)

    def record(self) -> Edges:
        return Edges(*(torch.cat(column) for column in zip(*self._columns, strict=True)))


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
