"""From noise to clean latents along a sigma grid: whole trees, level by level, shown to whoever observes.

All trees advance together, one level of the grid at a time; the network sees a level's nodes once, in micro-batches.
What is kept of a level, edges to train on or pictures to look at, is the business of observers (`observers`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from diffrl import pulse
from diffrl.functional.dynamics import ab2_step, ode_step
from diffrl.models.adapter import Conditioning, ModelAdapter, take_rows
from diffrl.records import Forest
from diffrl.rollout.address import Address
from diffrl.rollout.noise import noise_at, prefetch, sibling_noise
from diffrl.rollout.transition import Transition
from diffrl.rollout.tree import SHARED

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Velocities (B, ...) that a policy predicts: latents (B, ...), sigma (B,), prompt rows (B,)."""


def batched_velocity(
    adapter: ModelAdapter,
    latents: Tensor,
    sigma: Tensor,
    conditioning: Conditioning,
    rows: Tensor,
    guidance_scale: float,
    micro_batch: int,
) -> Tensor:
    """Return velocities (B, ...) of latents (B, ...), at most `micro_batch` samples a network call.

    Args:
        adapter: the model.
        latents: (B, ...).
        sigma: (B,) noise levels.
        conditioning: encoded prompts, one row a prompt.
        rows: (B,) int64, the row of each sample's prompt.
        guidance_scale: 1 is off.
        micro_batch: samples a call.
    """
    predict = velocity_of(adapter, conditioning, guidance_scale)
    if len(latents) <= micro_batch:
        return predict(latents, sigma, rows)
    velocities: Tensor | None = None  # each call's rows go to their place: joined in the end, all would be there twice
    for start in range(0, len(latents), micro_batch):
        batch = slice(start, start + micro_batch)
        velocity = predict(latents[batch], sigma[batch], rows[batch])
        if velocities is None:
            velocities = velocity.new_empty((len(latents), *velocity.shape[1:]))
        velocities[batch] = velocity
    assert velocities is not None
    return velocities


def velocity_of(adapter: ModelAdapter, conditioning: Conditioning, guidance_scale: float) -> Velocity:
    """Return the policy as a function of latents (B, ...), sigma (B,) and prompt rows (B,), conditioned alike."""

    def predict(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
        velocity = adapter.velocity(latents, sigma, take_rows(conditioning, prompt), guidance_scale)
        pulse.advance(pulse.NETWORK, len(latents))
        return velocity

    return predict


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
        latents_dtype: what latents are rounded to where a stochastic step begins and ends, before it is scored, so that
            they can be stored so.
    """

    sigmas: Tensor
    levels: Sequence[int] | None = None
    transition: Transition | None = None
    correlation: float = 4.0
    solver: str = "ode"
    guidance_scale: float = 1.0
    micro_batch: int = 128
    latents_dtype: torch.dtype = torch.float32

    @property
    def grid(self) -> tuple[int, ...]:
        """The visited indices."""
        return tuple(range(len(self.sigmas)) if self.levels is None else self.levels)

    def rounded(self, latents: Tensor) -> Tensor:
        """Return latents (B, ...) as they can be stored, in the dtype that they have."""
        return latents.to(self.latents_dtype).to(latents.dtype)


@dataclass(frozen=True)
class Branch:
    """A stochastic step of all nodes of a level: M children, each with noise of its own.

    Args:
        origin: (M,) int64 row of the level that each child comes from, ascending; on the CPU.
        children: (M,) int64 nodes of the forest in which the steps end; on the CPU.
        mean: (M, ...) of the transition.
        std: (M, ...) or broadcastable to it.
        next_latents: (M, ...) what was drawn, as stored.
    """

    origin: Tensor
    children: Tensor
    mean: Tensor
    std: Tensor
    next_latents: Tensor


@dataclass(frozen=True)
class Level:
    """One level of the sigma grid, as an observer of `denoise` sees it; B rows, one a node that goes on.

    Args:
        step: index of the level in the grid.
        sigma: its noise level, a scalar tensor; 0 at the end.
        sigma_next: that of the level after it.
        nodes: (B,) int64 nodes of the forest that the rows continue; on the CPU.
        prompt: (B,) int64 row of each one's prompt; on the CPU.
        latents: (B, ...).
        velocity: (B, ...) that the network predicts; None at the end, where it is not asked.
        first: whether these nodes are seen for the first time: noise was added just before.
        branch: the stochastic step that leaves the level; None if it is deterministic.
    """

    step: int
    sigma: Tensor
    sigma_next: Tensor
    nodes: Tensor
    prompt: Tensor
    latents: Tensor
    velocity: Tensor | None
    first: bool
    branch: Branch | None = None

    @property
    def predicted(self) -> Tensor:
        """(B, ...) clean latents that the velocities point to."""
        return self.latents if self.velocity is None else self.latents - self.sigma * self.velocity


@dataclass(frozen=True)
class _Stage:
    """The nodes that go on from one stochastic step to the next, and the step that ends them.

    Args:
        nodes: (B,) int64 nodes of the forest, on the CPU.
        prompt: (B,) int64 row of each one's prompt, on the CPU.
        children: (M,) int64 nodes in which the next stochastic step ends, on the CPU; none in the last stage.
        origin: (M,) int64 row among `nodes` that each child comes from, on the CPU.
        rows: `prompt` on the device.
        parents: `origin` on the device.
    """

    nodes: Tensor
    prompt: Tensor
    children: Tensor
    origin: Tensor
    rows: Tensor
    parents: Tensor


Observer = Callable[[Level], None]
"""Is shown every level while a forest is drawn, and keeps of it what it wants (`observers`)."""


@torch.no_grad()
def denoise(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    forest: Forest,
    roots: Sequence[Address],
    sampler: Sampler,
    *,
    observe: Iterable[Observer] = (),
) -> Tensor:
    """Draw a forest's samples; a path that several samples share is walked once.

    Args:
        adapter: the model.
        conditioning: encoded prompts, one row a prompt.
        forest: what to draw; its stochastic steps lie on the sampler's grid, and none is the last step.
        roots: addresses of its initial noises, in the order of its roots; all other noise is addressed below them.
        sampler: how.
        observe: called with each level in turn, and with the finished latents as the last one.

    Returns:
        (S, ...) latents at sigma = 0.
    """
    x = adapter.init_latents(lambda shape: noise_at(roots, shape))
    grid, sigmas = sampler.grid, sampler.sigmas.to(x.device)
    stages = _stages(forest, len(roots), x.device)
    noises = prefetch(
        _draws(
            forest=forest,
            stages=stages,
            roots=roots,
            grid=grid,
            shape=tuple(x.shape[1:]),
            correlation=sampler.correlation,
        )
    )
    following = iter(stages)
    stage = next(following)
    previous: tuple[Tensor, Tensor] | None = None  # velocity and sigma of a deterministic step just before
    for i, i_next in itertools.pairwise(grid):
        if i in forest.branching:
            x = sampler.rounded(x)
        sigma, sigma_next = sigmas[i].expand(len(x)), sigmas[i_next].expand(len(x))
        v = batched_velocity(
            adapter=adapter,
            latents=x,
            sigma=sigma,
            conditioning=conditioning,
            rows=stage.rows,
            guidance_scale=sampler.guidance_scale,
            micro_batch=sampler.micro_batch,
        )
        branch: Branch | None = None
        if i in forest.branching:
            branch = _branch(
                stage=stage,
                noise=next(noises).to(x.device),
                x=x,
                velocity=v,
                sigma=sigma,
                sigma_next=sigma_next,
                sampler=sampler,
            )
        level = Level(
            step=i,
            sigma=sigmas[i],
            sigma_next=sigmas[i_next],
            nodes=stage.nodes,
            prompt=stage.prompt,
            latents=x,
            velocity=v,
            first=previous is None,
            branch=branch,
        )
        for observer in observe:
            observer(level)
        if branch is not None:
            x, stage, previous = branch.next_latents, next(following), None
            continue
        step = ode_step(x, v, sigma, sigma_next)
        if sampler.solver == "ab2" and previous is not None:
            step = ab2_step(x=x, v=v, v_prev=previous[0], sigma=sigma, sigma_next=sigma_next, sigma_prev=previous[1])
        x, previous = step.mean.to(x.dtype), (v, sigma)
    end = Level(
        step=grid[-1],
        sigma=sigmas[-1],
        sigma_next=sigmas[-1],
        nodes=stage.nodes,
        prompt=stage.prompt,
        latents=x,
        velocity=None,
        first=previous is None,
    )
    for observer in observe:
        observer(end)
    return x[torch.searchsorted(stage.nodes, forest.leaf)]


def _stages(forest: Forest, roots: int, device: torch.device) -> list[_Stage]:
    """Return the stages of a forest; what the device must know of all of them goes there in one copy."""
    known, nodes = [], torch.arange(roots)
    for step in (*sorted(forest.branching), None):
        children = nodes[:0] if step is None else torch.nonzero(forest.step == step).flatten()
        known.append((nodes, forest.prompt[nodes], children, torch.searchsorted(nodes, forest.parent[children])))
        nodes = children
    sent = [part for _, prompt, _, origin in known for part in (prompt, origin)]
    there = torch.cat(sent).to(device).split([len(part) for part in sent])
    return [_Stage(*parts, *pair) for parts, pair in zip(known, zip(there[::2], there[1::2], strict=True), strict=True)]


def _draws(
    forest: Forest,
    stages: Sequence[_Stage],
    roots: Sequence[Address],
    grid: Sequence[int],
    shape: tuple[int, ...],
    correlation: float,
) -> list[Callable[[], Tensor]]:
    """Return what draws each stochastic step's noise, (M, *shape) on the CPU, known from the addresses alone."""
    draws: list[Callable[[], Tensor]] = []
    paths, following = list(roots), iter(stages)
    for i, i_next in itertools.pairwise(grid):
        if i not in forest.branching:
            paths = [path._replace(path=path.path + (0,) * (i_next - i)) for path in paths]
            continue
        stage = next(following)
        parents = [paths[row] for row in stage.origin.tolist()]
        paths = [parent.child(k) for parent, k in zip(parents, forest.child[stage.children].tolist(), strict=True)]
        related = correlation if forest.branching[i] > 1 else math.inf
        draws.append(partial(_noise, paths, parents, shape, related))
    return draws


def _noise(paths: Sequence[Address], parents: Sequence[Address], shape: tuple[int, ...], correlation: float) -> Tensor:
    """Return noise (M, *shape) of nodes at M addresses, the children of one address correlated."""
    noise = noise_at(paths, shape)
    if math.isinf(correlation):
        return noise
    families = list(dict.fromkeys(parents))
    row = {parent: i for i, parent in enumerate(families)}
    shared = noise_at([parent.child(SHARED) for parent in families], shape)
    return sibling_noise(shared[[row[parent] for parent in parents]], noise, correlation)


def _branch(
    stage: _Stage, noise: Tensor, x: Tensor, velocity: Tensor, sigma: Tensor, sigma_next: Tensor, sampler: Sampler
) -> Branch:
    """Return the children of a level's nodes."""
    assert sampler.transition is not None
    mean, std = sampler.transition(x, velocity, sigma, sigma_next)
    mean, std = mean[stage.parents], std.expand(len(x), *std.shape[1:])[stage.parents]
    moved = (mean + std * noise).to(x.dtype)
    return Branch(stage.origin, stage.children, mean, std, sampler.rounded(moved))
