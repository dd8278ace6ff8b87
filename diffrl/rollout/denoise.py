"""From noise to clean latents along a sigma grid, keeping the stochastic steps as edges.

All samples advance together, one level of the grid at a time; the network sees them in micro-batches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from diffrl.functional.dynamics import ode_step
from diffrl.functional.gaussian import log_prob
from diffrl.models.adapter import Conditioning, ModelAdapter, take_rows
from diffrl.records import Edges
from diffrl.rollout.address import Address
from diffrl.rollout.noise import noise_at
from diffrl.transition import Transition


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


@torch.no_grad()
def denoise(
    adapter: ModelAdapter,
    conditioning: Conditioning,
    rows: Tensor,
    addresses: Sequence[Address],
    *,
    sigmas: Tensor,
    transition: Transition | None,
    stochastic: Collection[int] = (),
    guidance_scale: float = 1.0,
    micro_batch: int = 128,
) -> tuple[Tensor, Edges]:
    """Draw one chain per address.

    Args:
        adapter: the model.
        conditioning: encoded prompts, one row a prompt.
        rows: (S,) int64, the row of each sample's prompt.
        addresses: S addresses of initial noises; all other noise is addressed below them.
        sigmas: (T + 1,) grid from 1 to 0.
        transition: dynamics of the stochastic steps; None if there are none.
        stochastic: indices of the stochastic steps; every other step is Euler. The last step never is one.
        guidance_scale: 1 is off.
        micro_batch: samples a network call.

    Returns:
        Latents (S, ...) at sigma = 0, and the stochastic steps with their densities. Densities are taken of the
        latents as they are stored, so a recomputation under the same weights gives a ratio of exactly 1.
    """
    x = adapter.init_latents(lambda shape: noise_at(addresses, shape))
    device, count = x.device, len(addresses)
    rows, sigmas = rows.to(device), sigmas.to(device)
    samples = torch.arange(count, device=device)
    paths = list(addresses)
    kept: list[tuple[Tensor, ...]] = []
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = sigmas[i].expand(count), sigmas[i + 1].expand(count)
        v = batched_velocity(adapter, x, sigma, conditioning, rows, guidance_scale, micro_batch)
        paths = [address.child(0) for address in paths]
        if i not in stochastic or transition is None:
            x = ode_step(x, v, sigma, sigma_next).mean.to(x.dtype)
            continue
        mean, std = transition(x, v, sigma, sigma_next)
        noise = noise_at(paths, tuple(x.shape[1:])).to(device)
        x_next = (mean + std * noise).to(x.dtype)
        density = log_prob(x_next, mean, std)
        step = torch.full((count,), i, device=device)
        kept.append((x, x_next, sigma, sigma_next, step, samples, density))
        x = x_next
    return x, _concatenate(kept, x)


def _concatenate(kept: list[tuple[Tensor, ...]], like: Tensor) -> Edges:
    """Edges of several steps as one record; no steps give an empty one."""
    if kept:
        return Edges(*(torch.cat(column) for column in zip(*kept, strict=True)))
    none, index = like.new_zeros((0,)), torch.zeros((0,), dtype=torch.int64, device=like.device)
    return Edges(like[:0], like[:0], none, none, index, index, none)


def take_edges(edges: Edges, index: Tensor) -> Edges:
    """The edges at `index` (B,) int64, in that order."""
    fields = (edges.latents, edges.next_latents, edges.sigma, edges.sigma_next, edges.step, edges.sample)
    return Edges(*(field[index] for field in fields), edges.old_log_prob[index])
