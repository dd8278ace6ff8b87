"""DGPO, direct group preference optimisation: a group's samples against each other, measured from the reference policy.

DGPO, arXiv 2510.08425. The samples of a prompt share noise levels and noise, so that their errors compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from diffrl.functional.losses import velocity_kl
from diffrl.functional.matching import dgpo_loss, group_weight
from diffrl.objectives.base import RunContext, States, asked
from diffrl.objectives.noised import noised
from diffrl.records import Credit, Rollout
from diffrl.rollout.denoise import Velocity


@dataclass(frozen=True)
class PreferenceExamples(States):
    """Finished samples, noised again; a unit is one sample at one noise level.

    Args:
        cell: (M,) int64, equal for a prompt's samples at the same noise level.
        counts: (M,) bool, False for samples that are no part of their group.
        target: (M, ...) the velocity noise - clean.
        advantage: (M,) float32.
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
        reference_velocity: (M, ...) of the reference; zeros until `DGPO.compared`, and where it was not asked.
        weight: (M,) float32 of the unit's cell; 0 until `DGPO.compared`.
    """

    cell: Tensor
    counts: Tensor
    target: Tensor
    advantage: Tensor
    old_velocity: Tensor
    reference_velocity: Tensor
    weight: Tensor


@dataclass(frozen=True)
class DGPO:
    """The objective.

    Args:
        seed: of the run; keys the noise of the examples.
        beta: strength of the group's preference.
        clip: exp(d_old - d) counts within [1 - clip, 1 + clip].
        kl: weight of mean |v - v_ref|^2; 0 is off.
        levels: noise levels of each prompt.
        noise_range: they lie in [1 - noise_range, 1].
        old_is_policy: as for `NFT`; then the clip removes nothing.
    """

    seed: int
    beta: float = 10.0
    clip: float = 0.05
    kl: float = 0.0
    levels: int = 1
    noise_range: float = 1.0
    old_is_policy: bool = False

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> DGPO:
        """Of a run; options are the fields between seed and old_is_policy."""
        return cls(context.seed, old_is_policy=context.old_is_policy, **options)

    @property
    def needs_reference(self) -> bool:
        """Not in the loss: `compared` asks for its velocities, and they are kept."""
        return False

    @property
    def needs_old_velocity(self) -> bool:
        """The clip is about its errors."""
        return not self.old_is_policy

    @property
    def group_evaluations(self) -> int:
        """Of the policy and of the reference."""
        return 2

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the error, the group's weight and the clip, and the distance to the reference."""
        return ("matching_error", "group_weight", "clipped", "reference_kl")

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> PreferenceExamples:
        """Every sample at its prompt's noise levels; those of no advantage are inactive unless the reference pulls."""
        units = noised(rollout, self.seed, self.levels, self.noise_range, shared=True)
        device = units.prompt.device
        counts, advantage = (column[units.sample].to(device) for column in (credit.used, credit.outcome))
        active = counts if self.kl > 0 else counts & (advantage != 0)
        velocity = asked(old, units.start, active & self.needs_old_velocity, micro_batch)
        unknown, weight = velocity.new_zeros(velocity.shape), advantage.new_zeros(advantage.shape)
        return PreferenceExamples(
            *units.start, active, units.cell, counts, units.target, advantage, velocity, unknown, weight
        )

    def compared(
        self,
        examples: PreferenceExamples,
        index: Tensor,
        policy: Velocity,
        reference: Velocity | None,
        micro_batch: int,
    ) -> PreferenceExamples:
        """See `GroupObjective`: the weights of the update's cells, and the reference's velocities."""
        assert reference is not None
        taken = examples.take(index)
        start = asked(reference, taken.start, taken.active, micro_batch)
        now = asked(policy, taken.start, taken.active, micro_batch)
        errors = velocity_kl(now, taken.target), velocity_kl(start, taken.target)
        found = group_weight(*errors, taken.advantage, taken.cell, taken.counts, self.beta)
        return replace(
            examples,
            reference_velocity=examples.reference_velocity.index_copy(0, index, start),
            weight=examples.weight.index_copy(0, index, found),
        )

    def loss(
        self, examples: PreferenceExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are those of `dgpo_loss`, and reference_kl."""
        velocity = policy(*examples.start)
        loss, metrics = dgpo_loss(
            velocity,
            examples.old_velocity if self.needs_old_velocity else velocity.detach(),
            examples.target,
            examples.advantage,
            examples.weight,
            self.clip,
        )
        distance = velocity_kl(velocity, examples.reference_velocity)
        return loss + self.kl * distance, {**metrics, "reference_kl": distance.detach()}

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """None: no step of the rollout has a ratio."""
        return ()
