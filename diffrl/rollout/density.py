"""Densities of recorded steps under any policy: the only place where they are taken again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffrl.functional.gaussian import log_prob
from diffrl.records import Edges
from diffrl.rollout.observers import take_origins
from diffrl.rollout.transition import Transition


def step_of_edges(edges: Edges, velocity: Tensor, transition: Transition) -> tuple[Tensor, Tensor]:
    """Return mean (E, ...) and std of each edge under a policy that predicts `velocity` (U, ...) at the origins."""
    mean, std = transition(edges.latents, velocity, edges.sigma, edges.sigma_next)
    return mean[edges.origin], std.expand(len(mean), *std.shape[1:])[edges.origin]


def origin_velocities(edges: Edges, policy: Callable[[Tensor, Tensor, Tensor], Tensor], micro_batch: int) -> Tensor:
    """Return (U, ...) velocities of a policy at the origins of recorded steps, float32.

    Args:
        edges: the steps.
        policy: gives velocities of latents, noise levels and prompt rows, conditioned as when they were drawn.
        micro_batch: origins a network call.
    """
    velocities = edges.stored.new_zeros((len(edges.step), *edges.stored.shape[1:]), dtype=torch.float32)
    for index, piece, _ in _pieces(edges, micro_batch):
        velocities[index] = policy(piece.latents, piece.sigma, piece.prompt).detach().float()
    return velocities


def densities_under(edges: Edges, velocity: Tensor, transition: Transition, micro_batch: int) -> Tensor:
    """Return (E,) float32 log-densities of recorded steps, averaged over latent dimensions.

    Args:
        edges: the steps.
        velocity: (U, ...) at their origins.
        transition: the dynamics that drew them.
        micro_batch: origins at a time.
    """
    densities = torch.zeros_like(edges.old_log_prob)
    for index, piece, rows in _pieces(edges, micro_batch):
        densities[rows] = _densities(piece, velocity[index], transition)
    return densities


def retaken(
    edges: Edges,
    batches: Iterable[Tensor],
    policy: Callable[[Tensor, Tensor, Tensor], Tensor],
    transition: Transition,
) -> Edges:
    """Return the same steps with the densities that a policy gives them in these batches; others keep what they have.

    Args:
        edges: the steps.
        batches: distinct origins (B,) int64, a network call each.
        policy: as in `origin_velocities`.
        transition: the dynamics that drew them.
    """
    densities = edges.old_log_prob.clone()
    for index in batches:
        piece, rows = take_origins(edges, index)
        densities[rows] = _densities(piece, policy(piece.latents, piece.sigma, piece.prompt), transition)
    return replace(edges, old_log_prob=densities)


def drawn_calls(edges: Edges, prompts_at_once: int | None, micro_batch: int) -> Iterator[Tensor]:
    """Yield the origins (B,) int64 of each network call that drew them: a level of some prompts, in micro-batches.

    A low-precision network rounds activations that other sums put on the other side of a threshold, or scales them by
    the whole call: only the same call gives the same velocities.

    Args:
        edges: of a rollout, whole levels.
        prompts_at_once: prompts that were drawn together; None = all.
        micro_batch: origins a network call.
    """
    together = edges.prompt // prompts_at_once if prompts_at_once else torch.zeros_like(edges.prompt)
    for part in together.unique().tolist():
        for step in edges.step.unique().tolist():
            yield from torch.nonzero((together == part) & (edges.step == step)).flatten().split(micro_batch)


def _pieces(edges: Edges, micro_batch: int) -> Iterator[tuple[Tensor, Edges, Tensor]]:
    """Yield some origins at a time: their rows, their edges, and the rows of these."""
    for index in torch.arange(len(edges.step), device=edges.step.device).split(micro_batch):
        if len(index):
            yield index, *take_origins(edges, index)


def _densities(edges: Edges, velocity: Tensor, transition: Transition) -> Tensor:
    mean, std = step_of_edges(edges, velocity, transition)
    return log_prob(edges.next_latents, mean, std).detach()


def ratio_errors(
    edges: Edges, policy: Callable[[Tensor, Tensor, Tensor], Tensor], transition: Transition, micro_batch: int
) -> Sequence[tuple[int, float]]:
    """Return each recorded step's largest |ratio - 1|, as (step, error) by step; gradients stay as they are.

    Args:
        edges: the steps.
        policy: as in `origin_velocities`.
        transition: the dynamics that drew them.
        micro_batch: origins a network call.
    """
    every = torch.zeros_like(edges.old_log_prob)
    for _, piece, rows in _pieces(edges, micro_batch):
        density = _densities(piece, policy(piece.latents, piece.sigma, piece.prompt), transition)
        every[rows] = torch.expm1(density - piece.old_log_prob).abs()
    return [(step, float(every[edges.edge_step == step].max())) for step in edges.edge_step.unique().tolist()]
