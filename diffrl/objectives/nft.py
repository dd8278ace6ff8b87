"""DiffusionNFT: two contrasted velocities on noised samples; neither a path nor a density is needed.

DiffusionNFT, arXiv 2509.16117; what Sol-RL (arXiv 2604.06916) trains with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffrl.functional.losses import nft_loss, optimality
from diffrl.objectives.base import RunContext, States, asked, pulled
from diffrl.objectives.noised import noised
from diffrl.records import Credit, Rollout
from diffrl.rollout.denoise import Velocity


@dataclass(frozen=True)
class NoisedExamples(States):
    """Finished samples, noised again; a unit is one sample at one noise level.

    Args:
        clean: (M, ...) the samples.
        optimality: (M,) float32 in [0, 1].
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
    """

    clean: Tensor
    optimality: Tensor
    old_velocity: Tensor


@dataclass(frozen=True)
class NFT:
    """The objective.

    Args:
        seed: of the run; keys the noise of the examples.
        beta: how far the contrasted velocities lie from the old one.
        kl: weight of mean |v - v_ref|^2; 0 is off.
        levels: noise levels of each sample.
        noise_range: they lie in [1 - noise_range, 1].
        old_is_policy: the policy that drew the samples is the one that is trained, and every example is used before it
            changes; then v_old is its own velocity, without gradient, and costs no evaluation.
    """

    seed: int
    beta: float = 1.0
    kl: float = 0.0
    levels: int = 1
    noise_range: float = 1.0
    old_is_policy: bool = False

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> NFT:
        """Of a run; options are beta, kl, levels and noise_range."""
        return cls(context.seed, old_is_policy=context.old_is_policy, **options)

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is evaluated."""
        return self.kl > 0

    @property
    def needs_old_velocity(self) -> bool:
        """The contrast is about its velocities."""
        return not self.old_is_policy

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the contrast, and the distance to the reference."""
        return ("loss_plus", "loss_minus", "velocity_gap", *(("reference_kl",) if self.kl > 0 else ()))

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> NoisedExamples:
        """Every sample at its noise levels; samples of no advantage are inactive unless the reference pulls."""
        units = noised(rollout, self.seed, self.levels, self.noise_range)
        active = credit.used if self.needs_reference else credit.used & (credit.outcome != 0)
        active = active[units.sample].to(units.prompt.device)
        velocity = asked(old, units.start, active & self.needs_old_velocity, micro_batch)
        r = optimality(credit.outcome)[units.sample].to(units.prompt.device)
        return NoisedExamples(*units.start, active, units.clean, r, velocity)

    def loss(
        self, examples: NoisedExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are those of `nft_loss` and, with a reference, reference_kl."""
        velocity = policy(*examples.start)
        loss, metrics = nft_loss(
            velocity,
            examples.old_velocity if self.needs_old_velocity else velocity.detach(),
            examples.latents,
            examples.clean,
            examples.sigma,
            examples.optimality,
            self.beta,
        )
        return pulled(loss, metrics, velocity, examples, reference, self.kl)

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """None: there is no ratio. The first update's `velocity_gap` is 0 instead."""
        return ()
