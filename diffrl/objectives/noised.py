"""Finished samples, noised again: what the objectives of the forward process (nft, awm, dgpo, crd) train on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffrl.records import Rollout
from diffrl.rollout.address import Address, Purpose
from diffrl.rollout.noise import generator_at, noise_at


@dataclass(frozen=True)
class Noised:
    """M = S * levels units: every sample at its noise levels, those of a sample side by side.

    Args:
        sample: (M,) int64 rows of the samples, on the CPU.
        level: (M,) int64 place of each among its sample's levels, on the CPU.
        prompt: (M,) int64 rows of the prompts.
        sigma: (M,) float32 noise levels.
        clean: (M, ...) the samples.
        noise: (M, ...) what they are mixed with.
        latents: (M, ...) the mixtures, (1 - sigma) * clean + sigma * noise.
    """

    sample: Tensor
    level: Tensor
    prompt: Tensor
    sigma: Tensor
    clean: Tensor
    noise: Tensor
    latents: Tensor

    @property
    def target(self) -> Tensor:
        """(M, ...) the velocity noise - clean, which a policy that only makes these samples has on average."""
        return self.noise - self.clean

    @property
    def start(self) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, noise levels and prompt rows: what a network is asked."""
        return self.latents, self.sigma, self.prompt

    @property
    def cell(self) -> Tensor:
        """(M,) int64: equal for a prompt's samples at the same place among their levels."""
        return self.prompt * (int(self.level.max()) + 1) + self.level.to(self.prompt.device)


def noised(rollout: Rollout, seed: int, levels: int, noise_range: float = 1.0, shared: bool = False) -> Noised:
    """Every sample at its noise levels; the same for the same seed and rollout, however prompts lie on ranks.

    Args:
        rollout: whose samples.
        seed: of the run; keys levels and noise.
        levels: of each sample.
        noise_range: levels lie in [1 - noise_range, 1], in (0, 1]; spread evenly over each prompt's samples, uniform
            for each one.
        shared: all samples of a prompt have the same levels, with the same noise.
    """
    device = rollout.latents.device
    sample = torch.arange(len(rollout)).repeat_interleave(levels)
    sigma, noise = _noise(rollout, seed, levels, noise_range, shared)
    sigma, noise, clean = sigma.to(device), noise.to(device), rollout.latents[sample.to(device)]
    level = sigma.reshape(-1, *[1] * (clean.ndim - 1))
    latents = (1.0 - level) * clean + level * noise
    prompt = rollout.forest.sample_prompt[sample].to(device)
    return Noised(sample, torch.arange(levels).repeat(len(rollout)), prompt, sigma, clean, noise, latents)


def _noise(rollout: Rollout, seed: int, levels: int, noise_range: float, shared: bool) -> tuple[Tensor, Tensor]:
    """Noise levels (M,) and noise (M, ...)."""
    batch, prompts = rollout.batch, rollout.forest.sample_prompt.tolist()
    place: dict[int, int] = {}
    addresses = []
    for row in prompts:
        index = place[row] = place.get(row, -1) + 1
        address = Address("nft", seed, batch.iteration, batch.groups[row], 0 if shared else index)
        addresses += [address.child(level) for level in range(levels)]
    sigmas = np.empty((len(prompts), levels), dtype=np.float32)
    for row, group in enumerate(batch.groups):
        mine = [i for i, prompt in enumerate(prompts) if prompt == row]
        count = levels if shared else len(mine) * levels
        generator = generator_at(seed, batch.iteration, group, Purpose.NOISE_LEVELS)
        strata = (generator.permutation(count) + generator.random(count)) / max(count, 1)
        sigmas[mine] = (1.0 - noise_range + noise_range * strata).reshape(-1, levels)
    shape = tuple(rollout.latents.shape[1:])
    return torch.from_numpy(sigmas.reshape(-1)).clamp(1e-3, 1.0), noise_at(addresses, shape)
