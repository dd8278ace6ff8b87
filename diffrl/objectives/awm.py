"""AWM, advantage-weighted matching: the loss of pretraining on the policy's own samples, weighted by advantages.

AWM, arXiv 2509.25050. With weighting `normalised`, on its own policy, it is DiffusionNFT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffrl.functional.matching import Weighting, awm_loss
from diffrl.objectives.base import RunContext, States, asked, pulled
from diffrl.objectives.noised import noised
from diffrl.records import Credit, Rollout
from diffrl.rollout.denoise import Velocity


@dataclass(frozen=True)
class MatchingExamples(States):
    """Finished samples, noised again; a unit is one sample at one noise level.

    Args:
        target: (M, ...) the velocity noise - clean.
        advantage: (M,) float32.
        old_velocity: (M, ...) of the policy that drew the samples; zeros where it was not asked.
    """

    target: Tensor
    advantage: Tensor
    old_velocity: Tensor


@dataclass(frozen=True)
class AWM:
    """The objective.

    Args:
        seed: of the run; keys the noise of the examples.
        weighting: of the matching error, by noise level and size.
        power: of the weighting ghuber.
        clip: the ratio counts within [1 - clip, 1 + clip].
        kl: weight of mean |v - v_ref|^2; 0 is off.
        levels: noise levels of each sample.
        noise_range: they lie in [1 - noise_range, 1].
        old_is_policy: as for `NFT`; then the ratio is 1.
    """

    seed: int
    weighting: Weighting = "ghuber"
    power: float = 0.25
    clip: float = 1.0
    kl: float = 0.0
    levels: int = 1
    noise_range: float = 1.0
    old_is_policy: bool = False

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> AWM:
        """Of a run; options are the fields between seed and old_is_policy."""
        return cls(context.seed, old_is_policy=context.old_is_policy, **options)

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is evaluated."""
        return self.kl > 0

    @property
    def needs_old_velocity(self) -> bool:
        """The ratio is to its error."""
        return not self.old_is_policy

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the ratio and the error, and the distance to the reference."""
        pulled = ("reference_kl",) if self.kl > 0 else ()
        return ("ratio", "ratio_error", "clipped", "approx_kl", "matching_error", *pulled)

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> MatchingExamples:
        """Every sample at its noise levels; samples of no advantage are inactive unless the reference pulls."""
        units = noised(rollout, self.seed, self.levels, self.noise_range)
        active = credit.used if self.needs_reference else credit.used & (credit.outcome != 0)
        active = active[units.sample].to(units.prompt.device)
        velocity = asked(old, units.start, active & self.needs_old_velocity, micro_batch)
        advantage = credit.outcome[units.sample].to(units.prompt.device)
        return MatchingExamples(*units.start, active, units.target, advantage, velocity)

    def loss(
        self, examples: MatchingExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are those of `awm_loss` and, with a reference, reference_kl."""
        velocity = policy(*examples.start)
        loss, metrics = awm_loss(
            velocity,
            examples.old_velocity if self.needs_old_velocity else velocity.detach(),
            examples.target,
            examples.sigma,
            examples.advantage,
            self.weighting,
            self.power,
            self.clip,
            self.clip,
        )
        return pulled(loss, metrics, velocity, examples, reference, self.kl)

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """None: no step of the rollout has a ratio."""
        return ()
