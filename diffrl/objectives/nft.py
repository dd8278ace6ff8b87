"""DiffusionNFT: two contrasted velocities on noised samples; neither a path nor a density is needed.

DiffusionNFT, arXiv 2509.16117; what Sol-RL (arXiv 2604.06916) trains with. Departures (docs/methods/diffusion_nft.md):
1. samples without advantage are skipped; 2. noise levels are stratified; 3. v_old is computed once, before the updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from diffrl.objectives.base import KlGuidedSettings, LossSettings, RunContext
from diffrl.objectives.examples import States, add_reference_kl
from diffrl.objectives.grpo import GRPO, Clip, ClipHigh
from diffrl.objectives.noised import SampleLoss, SampleSettings, Units
from diffrl.sections import Section, problems, show

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.rollout.denoise import Velocity


class EdgeLoss(Section):
    """The part of an nft objective that trains stochastic steps by GRPO."""

    weight: float = Field(1.0, ge=1.0e-6, le=1.0e6, description="Factor of its mean loss beside the mean NFT loss.")
    clip: Clip = 1.0e-3
    clip_high: ClipHigh = None


class NftSettings(KlGuidedSettings, SampleSettings):
    """DiffusionNFT: contrast on noised samples, in which neither a path nor a density is needed."""

    steps_key: ClassVar[str | None] = "objective.edges"
    cancels_on_policy: ClassVar[frozenset[str]] = frozenset({"objective.beta"})

    kind: Literal["nft"] = Field(description="DiffusionNFT, arXiv 2509.16117.")
    beta: float = Field(
        1.0, ge=1.0e-6, le=1.0e6, description="How far the two contrasted velocities lie from the old one."
    )
    edges: EdgeLoss | None = Field(None, description="Train the stochastic steps too. null = no.")

    @model_validator(mode="after")
    def _edges_are_on_policy(self) -> Self:
        if self.edges is not None and self.old_policy_is_ema:
            raise problems(
                [
                    "objective.old_decay_max must be 0 with objective.edges: a policy that lags draws steps whose "
                    "ratio is not 1, and the clip would remove them. "
                    f"Got old_decay_max={show(self.old_decay_max)}. Set it "
                    "to 0 or remove edges."
                ]
            )
        return self

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one of finished samples, and one of edges where they train too."""
        nft = NFT(**self.fields_of(context), beta=self.beta)
        losses = [LossSettings(nft, guidance=self.guidance, kl_guidance=self.kl_guidance)]
        if (edges := self.edges) is not None:
            grpo = GRPO(context.transition, edges.clip, edges.clip_high or edges.clip)
            losses.append(LossSettings(grpo, edges.weight))
        return losses


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
class NFT(SampleLoss[NoisedExamples]):
    """The loss; before the first update its metric velocity_gap is 0.

    Args:
        beta: how far the contrasted velocities lie from the old one.
    """

    measures: ClassVar[tuple[str, ...]] = ("loss_plus", "loss_minus", "velocity_gap")

    beta: float = 1.0

    def collect(self, units: Units) -> NoisedExamples:
        """Take the columns that the loss needs."""
        from diffrl.functional.losses import optimality

        return NoisedExamples(*units.states, units.noise.clean, optimality(units.advantage), units.old_velocity)

    def loss(
        self, examples: NoisedExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Contrast the policy with the old one; return metrics of `nft_loss` and, with a reference, reference_kl."""
        from diffrl.functional.losses import nft_loss

        velocity = policy(*examples.start)
        loss, metrics = nft_loss(
            v=velocity,
            v_old=self.velocity_before(examples, velocity),
            x=examples.latents,
            x0=examples.clean,
            sigma=examples.sigma,
            r=examples.optimality,
            beta=self.beta,
        )
        return add_reference_kl(
            loss=loss, metrics=metrics, velocity=velocity, examples=examples, reference=reference, weight=self.kl
        )
