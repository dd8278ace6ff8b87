"""AWM, advantage-weighted matching: the loss of pretraining on the policy's own samples, weighted by advantages.

AWM, arXiv 2509.25050. With weighting `normalised`, on its own policy, it is DiffusionNFT. Departures
(docs/methods/awm.md): 1. one old policy, which is the trained one or an average of it; 2. noise levels are stratified;
3. samples without advantage are skipped; 4. the loss is computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from diffrl.objectives.base import KlGuidedSettings, LossSettings, RunContext
from diffrl.objectives.examples import States, add_reference_kl
from diffrl.objectives.noised import DecayMax, Levels, NoiseRange, SampleLoss, SampleSettings, Units
from diffrl.sections import problems, show

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.functional.matching import Weighting
    from diffrl.rollout.denoise import Velocity


class AwmSettings(KlGuidedSettings, SampleSettings):
    """AWM, advantage-weighted matching: the loss of pretraining on the policy's own samples, weighted by advantages."""

    kind: Literal["awm"] = Field(description="Advantage-weighted matching, arXiv 2509.25050.")
    levels: Levels = 6
    noise_range: NoiseRange = 0.9
    old_decay_max: DecayMax = 0.0
    weighting: Literal["uniform", "sigma", "sigma_squared", "huber", "ghuber", "normalised"] = Field(
        "ghuber",
        description="Weight of the matching error; huber and ghuber damp large ones, normalised is DiffusionNFT's.",
    )
    power: float = Field(0.25, ge=1.0e-3, le=10, description="Power of ghuber. No effect with another weighting.")
    clip: float = Field(1.0, ge=1.0e-6, le=1, description="The ratio counts within [1 - clip, 1 + clip].")

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.weighting != "ghuber" and self.power != 0.25:
            raise problems(
                [
                    f"objective.power must be left at 0.25 with objective.weighting: {self.weighting}, where it has no "
                    f"effect. Got {show(self.power)}. Set weighting: ghuber or remove power."
                ]
            )
        return self

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of finished samples."""
        awm = AWM(**self.fields_of(context), weighting=self.weighting, power=self.power, clip=self.clip)
        return [LossSettings(awm, guidance=self.guidance, kl_guidance=self.kl_guidance)]


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
class AWM(SampleLoss[MatchingExamples]):
    """The loss.

    Args:
        weighting: of the matching error, by noise level and size.
        power: of the weighting ghuber.
        clip: the ratio counts within [1 - clip, 1 + clip]; it is 1 on the own policy.
    """

    measures: ClassVar[tuple[str, ...]] = ("ratio", "ratio_error", "clipped", "approx_kl", "matching_error")

    weighting: Weighting = "ghuber"
    power: float = 0.25
    clip: float = 1.0

    def collect(self, units: Units) -> MatchingExamples:
        """Take the columns that the loss needs."""
        return MatchingExamples(*units.states, units.noise.target, units.advantage, units.old_velocity)

    def loss(
        self, examples: MatchingExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return weigh matching errors; metrics are those of `awm_loss` and, with a reference, reference_kl."""
        from diffrl.functional.matching import awm_loss

        velocity = policy(*examples.start)
        loss, metrics = awm_loss(
            v=velocity,
            v_old=self.velocity_before(examples, velocity),
            target=examples.target,
            sigma=examples.sigma,
            advantage=examples.advantage,
            weighting=self.weighting,
            power=self.power,
            clip_low=self.clip,
            clip_high=self.clip,
        )
        return add_reference_kl(
            loss=loss, metrics=metrics, velocity=velocity, examples=examples, reference=reference, weight=self.kl
        )
