"""CRD, centred reward distillation: rewards that the policy implies differ within a group as the given ones do.

CRD, arXiv 2603.14128. Centring removes what cannot be computed, the normalising constant of the optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffrl.functional.losses import optimality
from diffrl.functional.matching import crd_loss, group_mean, implicit_reward
from diffrl.objectives.base import RunContext, States, asked, pulled
from diffrl.objectives.noised import noised
from diffrl.records import Credit, Rollout
from diffrl.rollout.denoise import Velocity


@dataclass(frozen=True)
class DistillationExamples(States):
    """Finished samples, noised again; a unit is one sample at one noise level.

    Args:
        cell: (M,) int64, equal for a prompt's samples at the same place among their levels.
        target: (M, ...) the velocity noise - clean.
        reward: (M,) float32 in [0, 1].
        reward_mean: (M,) float32, over the unit's cell.
        implicit_mean: (M,) float32, over the unit's cell; 0 until `CRD.compared`.
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
    """

    cell: Tensor
    target: Tensor
    reward: Tensor
    reward_mean: Tensor
    implicit_mean: Tensor
    old_velocity: Tensor


@dataclass(frozen=True)
class CRD:
    """The objective.

    Args:
        seed: of the run; keys the noise of the examples.
        beta: of the KL leash.
        kl: weight of mean |v - v_ref|^2; 0 is off.
        levels: noise levels of each sample.
        noise_range: they lie in [1 - noise_range, 1].
        old_is_policy: as for `NFT`; then every implied reward is 0.
    """

    seed: int
    beta: float = 1.0
    kl: float = 0.0
    levels: int = 1
    noise_range: float = 1.0
    old_is_policy: bool = False

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> CRD:
        """Of a run; options are the fields between seed and old_is_policy."""
        return cls(context.seed, old_is_policy=context.old_is_policy, **options)

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is evaluated."""
        return self.kl > 0

    @property
    def needs_old_velocity(self) -> bool:
        """Implied rewards are measured from it."""
        return not self.old_is_policy

    @property
    def group_evaluations(self) -> int:
        """Of the policy, unless it is the old one."""
        return int(self.needs_old_velocity)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the implied rewards, and the distance to the reference."""
        return ("implicit_reward", "reward_gap", *(("reference_kl",) if self.kl > 0 else ()))

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> DistillationExamples:
        """Every sample at its noise levels; those of no advantage train too, because implied rewards may differ."""
        units = noised(rollout, self.seed, self.levels, self.noise_range)
        device = units.prompt.device
        active = credit.used[units.sample].to(device)
        velocity = asked(old, units.start, active & self.needs_old_velocity, micro_batch)
        reward = optimality(credit.outcome)[units.sample].to(device)
        mean = group_mean(reward, units.cell, active)
        return DistillationExamples(
            *units.start, active, units.cell, units.target, reward, mean, torch.zeros_like(mean), velocity
        )

    def compared(
        self,
        examples: DistillationExamples,
        index: Tensor,
        policy: Velocity,
        reference: Velocity | None,
        micro_batch: int,
    ) -> DistillationExamples:
        """See `GroupObjective`: the mean of the rewards that the policy implies now, of the update's cells."""
        if not self.needs_old_velocity:
            return examples
        taken = examples.take(index)
        now = asked(policy, taken.start, taken.active, micro_batch)
        mean = group_mean(implicit_reward(now, taken.old_velocity, taken.target), taken.cell, taken.active)
        return replace(examples, implicit_mean=examples.implicit_mean.index_copy(0, index, mean))

    def loss(
        self, examples: DistillationExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are those of `crd_loss` and, with a reference, reference_kl."""
        velocity = policy(*examples.start)
        before = examples.old_velocity if self.needs_old_velocity else velocity.detach()
        loss, metrics = crd_loss(
            implicit_reward(velocity, before, examples.target),
            examples.implicit_mean,
            examples.reward,
            examples.reward_mean,
            self.beta,
        )
        return pulled(loss, metrics, velocity, examples, reference, self.kl)

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """None: no step of the rollout has a ratio."""
        return ()
