"""CRD, centred reward distillation: rewards that the policy implies differ within a group as the given ones do.

CRD, arXiv 2603.14128. Centring removes what cannot be computed, the normalising constant of the optimum. Departures
(docs/methods/crd.md): 1. one old policy for two; 2. one weight of the KL for all samples; 3. centring is uniform;
4. means are over a prompt; 5. noise levels are stratified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from diffrl.objectives.base import KlGuidedSettings, LossSettings, RunContext
from diffrl.objectives.examples import States, add_reference_kl, predict_active
from diffrl.objectives.noised import (
    DecayMax,
    DecayRate,
    Kl,
    Levels,
    NoiseRange,
    SampleLoss,
    SampleSettings,
    Units,
)

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.rollout.denoise import Velocity


class CrdSettings(KlGuidedSettings, SampleSettings):
    """CRD, centred reward distillation: rewards that the policy implies differ within a group as the given ones do."""

    cancels_on_policy: ClassVar[frozenset[str]] = frozenset({"objective.beta"})

    kind: Literal["crd"] = Field(description="Centred reward distillation, arXiv 2603.14128.")
    kl: Kl = 0.1
    levels: Levels = 20
    noise_range: NoiseRange = 0.99
    old_decay_rate: DecayRate = 0.005
    old_decay_max: DecayMax = 0.999
    beta: float = Field(1.0, ge=1.0e-6, le=1.0e6, description="Of the KL leash: implied rewards grow up to R / beta.")

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of finished samples."""
        crd = CRD(**self.fields_of(context), beta=self.beta)
        return [LossSettings(crd, guidance=self.guidance, kl_guidance=self.kl_guidance)]


@dataclass(frozen=True)
class DistillationExamples(States):
    """Finished samples, noised again; a unit is one sample at one noise level.

    Args:
        cell: (M,) int64, equal for a prompt's samples at the same place among their levels.
        target: (M, ...) the velocity noise - clean.
        reward: (M,) float32 in [0, 1].
        reward_mean: (M,) float32, over the unit's cell.
        implicit_mean: (M,) float32, over the unit's cell; 0 until `CRD.precompute_group_terms`.
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
    """

    cell: Tensor
    target: Tensor
    reward: Tensor
    reward_mean: Tensor
    implicit_mean: Tensor
    old_velocity: Tensor


@dataclass(frozen=True)
class CRD(SampleLoss[DistillationExamples]):
    """The loss; on the own policy every implied reward is 0.

    Args:
        beta: of the KL leash.
    """

    measures: ClassVar[tuple[str, ...]] = ("implicit_reward", "reward_gap")
    whole_groups: ClassVar[bool] = True

    beta: float = 1.0

    @property
    def trains_uncredited(self) -> bool:
        """Whether samples of no advantage train: always, because implied rewards may differ."""
        return True

    @property
    def group_evaluations(self) -> int:
        """Evaluations of the policy, unless it is the old one."""
        return int(self.needs_old_velocity)

    def collect(self, units: Units) -> DistillationExamples:
        """Take the columns that the loss needs."""
        import torch

        from diffrl.functional.losses import optimality
        from diffrl.functional.matching import group_mean

        reward, cell = optimality(units.advantage), units.noise.cell
        mean = group_mean(reward, cell, units.active)
        return DistillationExamples(
            *units.states,
            cell=cell,
            target=units.noise.target,
            reward=reward,
            reward_mean=mean,
            implicit_mean=torch.zeros_like(mean),
            old_velocity=units.old_velocity,
        )

    def precompute_group_terms(
        self,
        examples: DistillationExamples,
        index: Tensor,
        policy: Velocity,
        reference: Velocity,
        micro_batch: int,
    ) -> DistillationExamples:
        """Return the mean of the rewards that the policy implies now, of the update's cells."""
        from diffrl.functional.matching import group_mean, implicit_reward

        if not self.needs_old_velocity:
            return examples
        taken = examples.take(index)
        now = predict_active(policy, taken.start, taken.active, micro_batch)
        mean = group_mean(implicit_reward(now, taken.old_velocity, taken.target), taken.cell, taken.active)
        return replace(examples, implicit_mean=examples.implicit_mean.index_copy(0, index, mean))

    def loss(
        self, examples: DistillationExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return distil centred rewards; metrics are those of `crd_loss` and, with a reference, reference_kl."""
        from diffrl.functional.matching import crd_loss, implicit_reward

        velocity = policy(*examples.start)
        loss, metrics = crd_loss(
            implicit_reward(velocity, self.velocity_before(examples, velocity), examples.target),
            examples.implicit_mean,
            examples.reward,
            examples.reward_mean,
            self.beta,
        )
        return add_reference_kl(
            loss=loss, metrics=metrics, velocity=velocity, examples=examples, reference=reference, weight=self.kl
        )
