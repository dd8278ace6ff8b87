"""DiffusionART: clean predictions at the states of a rollout move along one direction of their prompt.

DiffusionART, arXiv 2610.12572: the elder of tree tilt, the first to regress predictions to targets that a covariance of
reward and endpoint tilts. Departures (docs/methods/art.md): 1. no mask of single numbers; 2. the pull to the reference
is between velocities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from diffrl.objectives.base import KlGuidedSettings, LossSettings, Objective, RunContext, Trained
from diffrl.objectives.examples import States, add_reference_kl
from diffrl.objectives.noised import Kl

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.records import Credit, Rollout
    from diffrl.rollout.denoise import Velocity


class ArtSettings(KlGuidedSettings):
    """DiffusionART: clean predictions at the states of a rollout move along one direction of their prompt."""

    kind: Literal["art"] = Field(description="DiffusionART, arXiv 2610.12572.")
    kl: Kl = 0.0
    levels: int = Field(
        ge=1,
        le=1000,
        description="Steps of each sample that train, those of most noise: rollout.steps = all, fewer = ART-Flash.",
    )
    step: float = Field(
        0.1, ge=1.0e-6, le=1.0e6, description="How far the target lies from the old prediction, in latent units."
    )

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of the states of finished samples."""
        return [LossSettings(ART(self.kl, self.levels, self.step), kl_guidance=self.kl_guidance)]


@dataclass(frozen=True)
class VisitExamples(States):
    """States of rollouts; a unit is one of a sample's.

    Args:
        sample: (M,) int64 rows of the samples.
        direction: (M, ...) of the prompt, the same at all its states.
        old_velocity: (M, ...) that the rollout took there.
    """

    sample: Tensor
    direction: Tensor
    old_velocity: Tensor


@dataclass(frozen=True)
class ART(Objective[VisitExamples]):
    """The loss.

    Args:
        kl: weight of mean |v - v_ref|^2; 0 is off.
        levels: states of each sample that train.
        step: from the old prediction to the target, in latent units.
    """

    trains: ClassVar[Trained] = "samples"
    measures: ClassVar[tuple[str, ...]] = ("moved", "target_gap")

    kl: float = 0.0
    levels: int = 1
    step: float = 0.1

    @property
    def visits(self) -> int:
        """As many states as train."""
        return self.levels

    @property
    def trains_uncredited(self) -> bool:
        """Whether samples of no advantage train: all do, for the prediction is to move at every state of a prompt."""
        return True

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> VisitExamples:
        """Return every state that was kept; the old predictions are the rollout's, at no further evaluation."""
        import torch

        from diffrl.functional.covariance import prompt_direction

        visits, device = rollout.visits, rollout.latents.device
        assert visits is not None
        used, outcome, prompt = (c.to(device) for c in (credit.used, credit.outcome, rollout.forest.sample_prompt))
        prompts = len(rollout.batch.prompts)
        direction = prompt_direction(rollout.latents[used], outcome[used], prompt[used], prompts)
        sample = torch.arange(len(rollout), device=device).repeat_interleave(self.levels)
        return VisitExamples(
            latents=visits.latents,
            sigma=visits.sigma,
            prompt=prompt[sample],
            active=used[sample],
            sample=sample,
            direction=direction[prompt[sample]],
            old_velocity=visits.velocity,
        )

    def groups(self, examples: VisitExamples) -> Tensor | None:
        """Return the sample of each state: an iteration's updates share out whole trajectories of every prompt."""
        return examples.sample

    def loss(
        self, examples: VisitExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Regress to the frozen target; metrics are those of `art_loss` and, with a reference, reference_kl."""
        from diffrl.functional.losses import art_loss

        velocity = policy(*examples.start)
        loss, metrics = art_loss(velocity, examples.old_velocity, examples.sigma, examples.direction, self.step)
        return add_reference_kl(
            loss=loss, metrics=metrics, velocity=velocity, examples=examples, reference=reference, weight=self.kl
        )
