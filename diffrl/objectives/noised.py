"""Finished samples, noised again: what objectives of the forward process (nft, awm, dgpo, crd, dpo) share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from diffrl.objectives.base import Objective, ObjectiveSettings, RunContext, Some, Trained
from diffrl.objectives.examples import predict_active
from diffrl.sections import MOST_GUIDANCE

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.records import Credit, Rollout
    from diffrl.rollout.denoise import Velocity

Kl = Annotated[
    float,
    Field(
        ge=0,
        le=1.0e6,
        description="Weight of mean |v - v_ref|^2; above 0 each example costs one more evaluation.",
    ),
]
Levels = Annotated[int, Field(ge=1, le=1000, description="Noise levels at which each sample is trained.")]
NoiseRange = Annotated[
    float,
    Field(ge=1.0e-3, le=1, description="They lie in [1 - noise_range, 1], where 1 is noise alone; 1 = anywhere."),
]
DecayRate = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="After an iteration the old policy keeps min(old_decay_rate * updates, old_decay_max).",
    ),
]
DecayMax = Annotated[
    float, Field(ge=0, lt=1, description="Most of itself that it keeps; 0 = always the newest policy.")
]


LossGuidance = Annotated[
    float,
    Field(
        ge=1,
        le=MOST_GUIDANCE,
        description="Classifier-free guidance of the velocity that trains, and of the old and the reference one beside "
        "it. 1 = the conditional velocity, as published; above 1 is another loss, and each costs two evaluations. "
        "Guidance that is the network's own input (FLUX) is always rollout.guidance_scale, of dpo eval.guidance_scale; "
        "where model.true_cfg_scale is set, this stands in its place.",
    ),
]


class SampleSettings(ObjectiveSettings):
    """What the objectives have in common that train on finished samples, noised again."""

    kind: str
    kl: Kl = 1.0e-4
    levels: Levels = 1
    noise_range: NoiseRange = 1.0
    guidance: LossGuidance = 1.0
    old_decay_rate: DecayRate = 0.001
    old_decay_max: DecayMax = 0.5

    def fields_of(self, context: RunContext) -> dict[str, Any]:
        """Return what every `SampleLoss` is made of."""
        return {
            "seed": context.seed,
            "kl": self.kl,
            "levels": self.levels,
            "noise_range": self.noise_range,
            "old_is_policy": context.old_is_policy,
        }

    @property
    def old_policy_is_ema(self) -> bool:
        """Whether the policy that draws is kept apart: not where it is always the newest."""
        return self.old_decay_max > 0

    def old_decay(self, updates: int) -> float:
        """Return rise with the updates as in DiffusionNFT, arXiv 2509.16117."""
        return min(self.old_decay_rate * updates, self.old_decay_max)


class Units(NamedTuple):
    """What there is to collect from.

    Args:
        noise: M units.
        active: (M,) bool.
        used: (M,) bool, False for samples that are no part of their group.
        advantage: (M,) float32.
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
    """

    noise: Noised
    active: Tensor
    used: Tensor
    advantage: Tensor
    old_velocity: Tensor

    @property
    def states(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The columns of `States`."""
        return (*self.noise.start, self.active)


@dataclass(frozen=True)
class SampleLoss(Objective[Some]):
    """A loss over finished samples, noised again.

    Args:
        seed: of the run; keys the noise of the examples.
        kl: weight of mean |v - v_ref|^2; 0 is off.
        levels: noise levels of each sample.
        noise_range: they lie in [1 - noise_range, 1].
        old_is_policy: see `RunContext`.
    """

    trains: ClassVar[Trained] = "samples"
    shared: ClassVar[bool] = False
    """Whether all samples of a prompt have the same levels, with the same noise."""

    seed: int
    kl: float = 0.0
    levels: int = 1
    noise_range: float = 1.0
    old_is_policy: bool = False

    @property
    def needs_old_velocity(self) -> bool:
        """Whether the old policy is another than the one that trains."""
        return not self.old_is_policy

    def examples(self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int) -> Some:
        """Return every sample at its noise levels; without advantage it is inactive, unless another term trains it."""
        noise = noised(rollout, self.seed, self.levels, self.noise_range, self.shared)
        used, advantage = (c[noise.sample].to(noise.prompt.device) for c in (credit.used, credit.outcome))
        active = used if self.trains_uncredited else used & (advantage != 0)
        velocity = predict_active(old, noise.start, active & self.needs_old_velocity, micro_batch)
        return self.collect(Units(noise, active, used, advantage, velocity))

    @abstractmethod
    def collect(self, units: Units) -> Some:
        """Return the columns that the loss needs."""

    def groups(self, examples: Any) -> Tensor | None:
        """Return a prompt's samples at one place among their levels, where groups train whole."""
        return examples.cell if self.whole_groups else None

    def velocity_before(self, examples: Any, velocity: Tensor) -> Tensor:
        """Return the old policy's velocity, which is the policy's own where they are the same."""
        before: Tensor = examples.old_velocity if self.needs_old_velocity else velocity.detach()
        return before


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
    """Return every sample at its noise levels; the same for the same seed and rollout, however prompts lie on ranks.

    Args:
        rollout: whose samples.
        seed: of the run; keys levels and noise.
        levels: of each sample.
        noise_range: levels lie in [1 - noise_range, 1], in (0, 1]; spread evenly over each prompt's samples, uniform
            for each one.
        shared: all samples of a prompt have the same levels, with the same noise.
    """
    import torch

    device = rollout.latents.device
    sample = torch.arange(len(rollout)).repeat_interleave(levels)
    sigma, noise = _noise(rollout, seed, levels, noise_range, shared)
    sigma, noise, clean = sigma.to(device), noise.to(device), rollout.latents[sample.to(device)]
    level = sigma.reshape(-1, *[1] * (clean.ndim - 1))
    latents = (1.0 - level) * clean + level * noise
    prompt = rollout.forest.sample_prompt[sample].to(device)
    return Noised(
        sample=sample,
        level=torch.arange(levels).repeat(len(rollout)),
        prompt=prompt,
        sigma=sigma,
        clean=clean,
        noise=noise,
        latents=latents,
    )


def _noise(rollout: Rollout, seed: int, levels: int, noise_range: float, shared: bool) -> tuple[Tensor, Tensor]:
    """Return noise levels (M,) and noise (M, ...)."""
    import numpy as np
    import torch

    from diffrl.rollout.address import Address, Purpose
    from diffrl.rollout.noise import generator_at, noise_at

    batch, prompts = rollout.batch, rollout.forest.sample_prompt.tolist()
    seen: dict[int, int] = {}
    addresses = []
    for row in prompts:
        index = seen[row] = seen.get(row, -1) + 1
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
