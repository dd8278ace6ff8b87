"""What would become of a node without further noise: deterministic completions of many nodes at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffrl.functional.dynamics import ab2_step, ode_step
from diffrl.models.adapter import Conditioning, ModelAdapter
from diffrl.records import Edges, Forest
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, batched_velocity
from diffrl.rollout.noise import noise_at


def inner_nodes(forest: Forest) -> Tensor:
    """Return nodes (M,) int64, ascending, that noise still lies ahead of; of all others the end is known."""
    inner = torch.zeros(len(forest.parent), dtype=torch.bool)
    inner[forest.parent[forest.parent >= 0]] = True
    return torch.nonzero(inner).flatten()


@torch.no_grad()
def complete(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    forest: Forest,
    roots: Sequence[Address],
    edges: Edges,
    sampler: Sampler,
) -> Tensor:
    """Carry every inner node to sigma = 0 by the ODE on the same grid, roots from the noise that they were drawn from.

    TP-GRPO, arXiv 2602.06422; its published code completes the first node from another noise.

    Args:
        adapter: the model.
        conditioning: encoded prompts, one row a prompt.
        forest: the trees.
        roots: addresses of their initial noises.
        edges: all stochastic steps of the forest, for the latents at its nodes.
        sampler: the grid, the solver, the batch.

    Returns:
        (M, ...) latents, in the order of `inner_nodes`.
    """
    x = adapter.init_latents(lambda shape: noise_at(roots, shape))
    device, nodes = x.device, inner_nodes(forest)
    latents = x.new_zeros((len(forest.parent), *x.shape[1:]))
    latents[: len(roots)] = x
    latents[edges.node] = edges.next_latents
    start = forest.step[nodes] + 1  # index of each node's noise level; nodes are in this order
    x, sigmas, rows = latents[nodes], sampler.sigmas.to(device), forest.prompt[nodes].to(device)
    v_before = torch.zeros_like(x)
    for i in range(len(sigmas) - 1):
        alive = int((start <= i).sum())  # the nodes of lower levels are those before
        old = int((start < i).sum())
        sigma, sigma_next = sigmas[i].expand(alive), sigmas[i + 1].expand(alive)
        v = batched_velocity(
            adapter=adapter,
            latents=x[:alive],
            sigma=sigma,
            conditioning=conditioning,
            rows=rows[:alive],
            guidance_scale=sampler.guidance_scale,
            micro_batch=sampler.micro_batch,
        )
        moved = ode_step(x[:alive], v, sigma, sigma_next).mean
        if sampler.solver == "ab2" and old:
            moved[:old] = ab2_step(
                x=x[:old],
                v=v[:old],
                v_prev=v_before[:old],
                sigma=sigma[:old],
                sigma_next=sigma_next[:old],
                sigma_prev=sigmas[i - 1].expand(old),
            ).mean
        x[:alive], v_before[:alive] = moved.to(x.dtype), v
    return x
