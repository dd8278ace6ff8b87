"""DGPO, direct group preference optimisation: a group's samples against each other, measured from the reference policy.

DGPO, arXiv 2510.08425. The samples of a prompt share noise levels and noise, so that their errors compare. Departures
(docs/methods/dgpo.md): 1. one old policy, which draws and clips; 2. noise levels are stratified; 3. samples without
advantage count in their group and are not evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from diffrl.objectives.base import LossSettings, RunContext
from diffrl.objectives.examples import States, predict_active
from diffrl.objectives.noised import DecayMax, NoiseRange, SampleLoss, SampleSettings, Units

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.rollout.denoise import Velocity


class DgpoSettings(SampleSettings):
    """DGPO, direct group preference optimisation: a group's samples against each other, from the starting model."""

    kind: Literal["dgpo"] = Field(description="Direct group preference optimisation, arXiv 2510.08425.")
    kl: float = Field(1.0e-3, ge=0, le=1.0e6, description="Weight of mean |v - v_ref|^2; costs no evaluation here.")
    levels: int = Field(4, ge=1, le=1000, description="Noise levels at which each group is trained.")
    noise_range: NoiseRange = 0.6
    old_decay_max: DecayMax = 0.3
    beta: float = Field(
        10.0, ge=1.0e-6, le=1.0e6, description="How soon a group weighs less once its better samples match better."
    )
    clip: float = Field(
        0.05, ge=1.0e-6, lt=1, description="A sample trains while exp(d_old - d) is within [1 - clip, 1 + clip]."
    )

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of finished samples."""
        dgpo = DGPO(**self.fields_of(context), beta=self.beta, clip=self.clip)
        return [LossSettings(dgpo, guidance=self.guidance)]


@dataclass(frozen=True)
class PreferenceExamples(States):
    """Finished samples, noised again; a unit is one sample at one noise level.

    Args:
        cell: (M,) int64, equal for a prompt's samples at the same noise level.
        counts: (M,) bool, False for samples that are no part of their group.
        target: (M, ...) the velocity noise - clean.
        advantage: (M,) float32.
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
        reference_velocity: (M, ...) of the reference; zeros until `DGPO.precompute_group_terms`, and where it was not
            asked.
        weight: (M,) float32 of the unit's cell; 0 until `DGPO.precompute_group_terms`.
    """

    cell: Tensor
    counts: Tensor
    target: Tensor
    advantage: Tensor
    old_velocity: Tensor
    reference_velocity: Tensor
    weight: Tensor


@dataclass(frozen=True)
class DGPO(SampleLoss[PreferenceExamples]):
    """The loss; on the own policy the clip removes nothing.

    Args:
        beta: strength of the group's preference.
        clip: exp(d_old - d) counts within [1 - clip, 1 + clip].
    """

    measures: ClassVar[tuple[str, ...]] = ("matching_error", "group_weight", "clipped")
    shared: ClassVar[bool] = True
    whole_groups: ClassVar[bool] = True
    precomputes_reference: ClassVar[bool] = True

    beta: float = 10.0
    clip: float = 0.05

    @property
    def group_evaluations(self) -> int:
        """One of the policy."""
        return 1

    def collect(self, units: Units) -> PreferenceExamples:
        """Take the columns that the loss needs."""
        return PreferenceExamples(
            *units.states,
            cell=units.noise.cell,
            counts=units.used,
            target=units.noise.target,
            advantage=units.advantage,
            old_velocity=units.old_velocity,
            reference_velocity=units.old_velocity.new_zeros(units.old_velocity.shape),
            weight=units.advantage.new_zeros(units.advantage.shape),
        )

    def precompute_group_terms(
        self,
        examples: PreferenceExamples,
        index: Tensor,
        policy: Velocity,
        reference: Velocity,
        micro_batch: int,
    ) -> PreferenceExamples:
        """Return the weights of the update's cells, and the reference's velocities."""
        from diffrl.functional.losses import velocity_kl
        from diffrl.functional.matching import group_weight

        taken = examples.take(index)
        start = predict_active(reference, taken.start, taken.active, micro_batch)
        now = predict_active(policy, taken.start, taken.active, micro_batch)
        errors = velocity_kl(now, taken.target), velocity_kl(start, taken.target)
        weight = group_weight(*errors, taken.advantage, taken.cell, taken.counts, self.beta)
        return replace(
            examples,
            reference_velocity=examples.reference_velocity.index_copy(0, index, start),
            weight=examples.weight.index_copy(0, index, weight),
        )

    def loss(
        self, examples: PreferenceExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Match what the group prefers; metrics are those of `dgpo_loss`, and reference_kl."""
        from diffrl.functional.losses import velocity_kl
        from diffrl.functional.matching import dgpo_loss

        velocity = policy(*examples.start)
        loss, metrics = dgpo_loss(
            v=velocity,
            v_old=self.velocity_before(examples, velocity),
            target=examples.target,
            advantage=examples.advantage,
            weight=examples.weight,
            clip=self.clip,
        )
        distance = velocity_kl(velocity, examples.reference_velocity)
        return loss + self.kl * distance, {**metrics, "reference_kl": distance.detach()}
