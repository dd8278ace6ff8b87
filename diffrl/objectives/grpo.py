"""GRPO over denoising steps: the clipped surrogate of each edge, with an optional distance to the reference policy.

Flow-GRPO (arXiv 2505.05470, eq. 4-7), with log-probabilities averaged over latent dimensions. Siblings leave the same
latents, so one network evaluation serves all of them. Departures (docs/methods/flow_grpo.md): 1. the distance to the
reference is off by default, and mean |v - v_ref|^2 unless kl_form is mean; 2. the groups of an iteration are its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from diffrl.objectives.base import KlGuidedSettings, LossSettings, Objective, RunContext, Trained
from diffrl.sections import problems, show

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.records import Credit, Edges, Rollout
    from diffrl.rollout.denoise import Velocity
    from diffrl.rollout.transition import Transition


Clip = Annotated[float, Field(ge=1.0e-6, lt=1, description="The ratio counts within [1 - clip, 1 + clip].")]
ClipHigh = Annotated[
    float | None,
    Field(
        ge=1.0e-6,
        le=1.0e6,
        description="Upper range on its own: 1 + clip_high (DAPO's clip-higher). null = the same as clip.",
    ),
]


class GrpoSettings(KlGuidedSettings):
    """Clipped surrogate on log-probs averaged over latent dimensions, hence the small clip."""

    kind: Literal["grpo"] = Field(description="Group-relative policy optimisation on denoising steps.")
    clip: Clip = 1.0e-3
    clip_high: ClipHigh = None
    kl: float = Field(
        0.0,
        ge=0,
        le=1.0e6,
        description="Weight of the distance to the starting model; above 0 each edge costs one more evaluation.",
    )
    kl_form: Literal["velocity", "mean"] = Field(
        "velocity",
        description="Distance: velocity = mean |v - v_ref|^2; mean = squared difference of step means / (2 std^2).",
    )

    @model_validator(mode="after")
    def _no_idle_keys(self) -> Self:
        if self.kl == 0 and self.kl_form != "velocity":
            raise problems(
                [
                    "objective.kl_form must be left at velocity while objective.kl is 0, where it has no effect. "
                    f"Got {show(self.kl_form)}. Set kl above 0 or remove kl_form."
                ]
            )
        return self

    def losses(self, context: RunContext) -> list[LossSettings]:
        """Return one, of edges."""
        grpo = GRPO(context.transition, self.clip, self.clip_high or self.clip, self.kl, self.kl_form)
        return [LossSettings(grpo, kl_guidance=self.kl_guidance)]


@dataclass(frozen=True)
class EdgeExamples:
    """Recorded steps with their advantages; a unit is an origin, a term one of its edges.

    Args:
        edges: the steps, without those that pruning took away.
        advantage: (E,) float32.
        terms: (U,) int64 edges of each origin, pruned ones included, so that pruning does not scale the others up.
        active: (U,) bool, whether the origin is evaluated.
        on_policy: nothing has changed since the steps were drawn, so that whatever the policy gives them is the density
            of the policy that drew them too; the one that the rollout gave differs from it by rounding.
    """

    edges: Edges
    advantage: Tensor
    terms: Tensor
    active: Tensor
    on_policy: bool = False

    @property
    def prompt(self) -> Tensor:
        """(U,) int64 row of each origin's prompt."""
        return self.edges.prompt

    @property
    def term_prompt(self) -> Tensor:
        """(E,) int64 row of each edge's prompt."""
        return self.edges.prompt[self.edges.origin]

    @property
    def start(self) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, noise levels and prompt rows of the origins."""
        return self.edges.latents, self.edges.sigma, self.edges.prompt

    def take(self, index: Tensor) -> EdgeExamples:
        """Return the origins at `index` with their edges."""
        from diffrl.rollout.observers import take_origins

        edges, rows = take_origins(self.edges, index)
        return EdgeExamples(edges, self.advantage[rows], self.terms[index], self.active[index], self.on_policy)


@dataclass(frozen=True)
class GRPO(Objective[EdgeExamples]):
    """The loss.

    Args:
        transition: the dynamics that drew the edges; None where nothing is computed.
        clip_low: the ratio may fall to 1 - clip_low before its gradient stops.
        clip_high: the ratio may rise to 1 + clip_high before its gradient stops.
        kl: weight of the distance to the reference policy; 0 is off.
        kl_form: `velocity` is mean |v - v_ref|^2, `mean` is mean (mu - mu_ref)^2 / (2 std^2).
    """

    trains: ClassVar[Trained] = "steps"
    measures: ClassVar[tuple[str, ...]] = ("ratio", "ratio_error", "clipped", "approx_kl")
    knows_on_policy: ClassVar[bool] = True

    transition: Transition | None
    clip_low: float
    clip_high: float
    kl: float = 0.0
    kl_form: Literal["velocity", "mean"] = "velocity"

    @property
    def dynamics(self) -> Transition:
        """The transition, of a run."""
        assert self.transition is not None
        return self.transition

    @property
    def clips(self) -> tuple[float, float]:
        """How far below and above 1 the ratio of a step counts."""
        return self.clip_low, self.clip_high

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> EdgeExamples:
        """Return all recorded steps but the pruned; origins without credit are inactive unless a reference counts."""
        import torch

        from diffrl.rollout.observers import take_origins

        edges = rollout.edges
        advantage = credit.advantage.to(edges.node.device)[edges.node]
        in_loss = grad_mask.to(edges.node.device)[edges.node]
        count = torch.zeros_like(edges.step)
        terms = count.index_add(0, edges.origin, torch.ones_like(edges.origin))
        trained = in_loss if self.trains_uncredited else in_loss & (advantage != 0)
        active = count.index_add(0, edges.origin, trained.long()) > 0
        every = torch.arange(len(edges.step), device=edges.step.device)
        if not in_loss.all():
            edges, rows = take_origins(edges, every, in_loss)
            advantage = advantage[rows]
        return EdgeExamples(edges, advantage, terms, active)

    def loss(
        self, examples: EdgeExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Clip the ratio of each edge; metrics are those of `clipped_surrogate` and, with a reference, reference_kl."""
        import torch

        from diffrl.functional.gaussian import kl, log_prob
        from diffrl.functional.losses import clipped_surrogate, velocity_kl
        from diffrl.rollout.density import step_of_edges

        edges = examples.edges
        velocity = policy(*examples.start)
        mean, std = step_of_edges(edges, velocity, self.dynamics)
        density = log_prob(edges.next_latents, mean, std)
        old = density.detach() if examples.on_policy else edges.old_log_prob
        loss, metrics = clipped_surrogate(density, old, examples.advantage, self.clip_low, self.clip_high)
        if examples.on_policy:  # what the rollout gave is not trained on, and still compared: it is a guard's affair
            metrics = {**metrics, "ratio_error": torch.expm1(old - edges.old_log_prob).abs()}
        if reference is None:
            return loss, metrics
        reference_velocity = reference(*examples.start)
        if self.kl_form == "velocity":
            distance = velocity_kl(velocity, reference_velocity)[edges.origin]
        else:
            distance = kl(mean, step_of_edges(edges, reference_velocity, self.dynamics)[0], std)
        return loss + self.kl * distance, {**metrics, "reference_kl": distance.detach()}

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Return each recorded step's largest |ratio - 1|, by the loss's code and with gradients, as in an update."""
        from diffrl.rollout.density import ratio_errors

        return ratio_errors(rollout.edges, policy, self.dynamics, micro_batch)

    def retake_densities(self, examples: EdgeExamples, calls: Sequence[Tensor], policy: Velocity) -> EdgeExamples:
        """Return the steps with the densities that the policy gives them in these calls."""
        from diffrl.rollout.density import retaken

        return replace(examples, edges=retaken(examples.edges, calls, policy, self.dynamics))

    def on_policy(self, examples: EdgeExamples, first: bool) -> EdgeExamples:
        """Return the steps; the first update's ratio is to the policy's own density."""
        return replace(examples, on_policy=first)
