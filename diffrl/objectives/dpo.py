"""DPO, direct preference optimisation on given pairs: images that somebody preferred, and those that lost against them.

Diffusion-DPO, arXiv 2311.12908, for velocities as in Flow-DPO (arXiv 2501.13918) without its weight of noise levels.
Departures (docs/methods/dpo.md): 1. noise levels are spread evenly over a prompt's pair; 2. images become the mode of
the encoder's distribution; 3. both sides may be evaluated in different calls, so a pair is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from diffrl.objectives.base import LossSettings, Objective, ObjectiveSettings, RunContext
from diffrl.objectives.examples import States, predict_active
from diffrl.objectives.noised import Levels, LossGuidance, NoiseRange, SampleLoss, Units

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.rollout.denoise import Velocity


class DpoSettings(ObjectiveSettings):
    """DPO, direct preference optimisation: given pairs of images train, of which one was preferred."""

    trains_pairs: ClassVar[bool] = True

    kind: Literal["dpo"] = Field(description="Direct preference optimisation on given pairs, arXiv 2311.12908.")
    loss: Literal["sigmoid", "sft"] = Field(
        "sigmoid",
        description="sigmoid = DPO; sft = pretraining's loss on the winners alone, the control that DPO has to beat.",
    )
    beta: float = Field(
        5000.0,
        ge=1.0e-3,
        le=1.0e9,
        description="How soon a pair trains less once its winner matches better than the loser, on the scale of "
        "Diffusion-DPO's code, which has 5,000. No effect with loss: sft.",
    )
    levels: Levels = 1
    noise_range: NoiseRange = 1.0
    guidance: LossGuidance = 1.0

    @property
    def idle_keys(self) -> Mapping[str, str]:
        """Name beta, of the control."""
        return {"objective.beta": "loss: sft compares nothing"} if self.loss == "sft" else {}

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of finished samples."""
        loss: Objective[Any] = SFT(context.seed, levels=self.levels, noise_range=self.noise_range)
        if self.loss == "sigmoid":
            loss = DPO(context.seed, levels=self.levels, noise_range=self.noise_range, beta=self.beta)
        return [LossSettings(loss, guidance=self.guidance)]


@dataclass(frozen=True)
class PairExamples(States):
    """Both images of pairs, noised alike; a unit is one image at one noise level.

    Args:
        cell: (M,) int64, equal for a pair at the same noise level.
        target: (M, ...) the velocity noise - clean.
        advantage: (M,) float32 the pair's weight, negative of a loser.
        margin: (M,) float32 of the unit's cell; 0 until `DPO.precompute_group_terms`.
    """

    cell: Tensor
    target: Tensor
    advantage: Tensor
    margin: Tensor


@dataclass(frozen=True)
class GivenPairs(SampleLoss[PairExamples]):
    """What both losses have in common: nobody drew the samples, so there is no old policy."""

    shared: ClassVar[bool] = True
    whole_groups: ClassVar[bool] = True

    @property
    def needs_old_velocity(self) -> bool:
        """Nobody drew the samples."""
        return False

    def collect(self, units: Units) -> PairExamples:
        """Take the columns that the loss needs."""
        noise, nothing = units.noise, units.advantage.new_zeros(units.advantage.shape)
        return PairExamples(
            *units.states, cell=noise.cell, target=noise.target, advantage=units.advantage, margin=nothing
        )


@dataclass(frozen=True)
class DPO(GivenPairs):
    """The loss; before any update its value is log 2.

    Args:
        beta: strength of a preference.
    """

    measures: ClassVar[tuple[str, ...]] = ("matching_error", "pair_accuracy", "pair_margin")
    precomputes_reference: ClassVar[bool] = True

    beta: float = 5000.0

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of `measures`: the reference is asked before the update, and not kept."""
        return self.measures

    @property
    def group_evaluations(self) -> int:
        """One of the policy."""
        return 1

    def precompute_group_terms(
        self, examples: PairExamples, index: Tensor, policy: Velocity, reference: Velocity, micro_batch: int
    ) -> PairExamples:
        """Return the examples with the margins of the update's pairs."""
        taken = examples.take(index)
        margin = self.margins(taken, policy, reference, micro_batch)
        return replace(examples, margin=examples.margin.index_copy(0, index, margin))

    def margins(self, taken: PairExamples, policy: Velocity, reference: Velocity, micro_batch: int) -> Tensor:
        """Return each unit's margin (B,), of whole cells; it is the same for a cell."""
        from diffrl.functional.losses import velocity_kl
        from diffrl.functional.matching import pair_margin

        now, start = (
            velocity_kl(predict_active(velocity, taken.start, taken.active, micro_batch), taken.target)
            for velocity in (policy, reference)
        )
        return pair_margin(now, start, taken.advantage.sign(), taken.cell, self.beta)

    def loss(
        self, examples: PairExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return `dpo_loss`; metrics are the matching error, and how the pair stood before this update."""
        from diffrl.functional.losses import velocity_kl
        from diffrl.functional.matching import dpo_loss

        error = velocity_kl(policy(*examples.start), examples.target)
        side, margin = examples.advantage.sign(), examples.margin
        return dpo_loss(error, side, margin, examples.advantage.abs(), self.beta), {
            "matching_error": error.detach(),
            "pair_accuracy": accuracy(margin),
            "pair_margin": margin,
        }


@dataclass(frozen=True)
class SFT(GivenPairs):
    """Pretraining's loss on the winners."""

    measures: ClassVar[tuple[str, ...]] = ("matching_error",)

    def collect(self, units: Units) -> PairExamples:
        """Leave out the losers, which are not evaluated."""
        examples = super().collect(units)
        return replace(examples, active=examples.active & (examples.advantage > 0))

    def loss(
        self, examples: PairExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the matching error, twice, since the mean is over losers too."""
        from diffrl.functional.losses import velocity_kl

        error = velocity_kl(policy(*examples.start), examples.target)
        return 2.0 * examples.advantage * error, {"matching_error": error.detach()}


def accuracy(margin: Tensor) -> Tensor:
    """Return (B,) 1 where a margin is above 0, 0.5 where it is 0, as before any update, else 0."""
    return 0.5 * (1.0 + margin.sign())
