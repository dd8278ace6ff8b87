"""GRPO over denoising steps: the clipped surrogate of each edge, with an optional pull to the reference policy.

Flow-GRPO (arXiv 2505.05470, eq. 4-7), with log-probabilities averaged over latent dimensions. Siblings leave the same
latents, so one network evaluation serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from diffrl.functional.gaussian import kl, log_prob
from diffrl.functional.losses import clipped_surrogate, velocity_kl
from diffrl.objectives.base import RunContext
from diffrl.records import Credit, Edges, Rollout
from diffrl.rollout.denoise import Velocity
from diffrl.rollout.density import ratio_errors, step_of_edges
from diffrl.rollout.observers import take_origins
from diffrl.rollout.transition import Transition


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
        """The origins at `index` with their edges."""
        edges, rows = take_origins(self.edges, index)
        return EdgeExamples(edges, self.advantage[rows], self.terms[index], self.active[index], self.on_policy)


@dataclass(frozen=True)
class GRPO:
    """The objective.

    Args:
        transition: the dynamics that drew the edges.
        clip_low: the ratio may fall to 1 - clip_low before its gradient stops.
        clip_high: the ratio may rise to 1 + clip_high before its gradient stops.
        kl: weight of the pull to the reference policy; 0 is off.
        kl_form: `velocity` is mean |v - v_ref|^2, `mean` is mean (mu - mu_ref)^2 / (2 std^2).
    """

    transition: Transition
    clip_low: float
    clip_high: float
    kl: float = 0.0
    kl_form: Literal["velocity", "mean"] = "velocity"

    @classmethod
    def build(cls, context: RunContext, **options: Any) -> GRPO:
        """Of a run; options are the fields beside the transition."""
        assert context.transition is not None
        return cls(context.transition, **options)

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is evaluated."""
        return self.kl > 0

    @property
    def needs_old_velocity(self) -> bool:
        """The densities of the policy that drew the steps are stored."""
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the ratio, and the distance to the reference."""
        return ("ratio", "ratio_error", "clipped", "approx_kl", *(("reference_kl",) if self.kl > 0 else ()))

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> EdgeExamples:
        """All recorded steps but the pruned; origins without any credit are inactive unless the reference pulls."""
        edges = rollout.edges
        advantage = credit.advantage.to(edges.node.device)[edges.node]
        grad_mask = grad_mask.to(edges.node.device)[edges.node]
        count = torch.zeros_like(edges.step)
        terms = count.index_add(0, edges.origin, torch.ones_like(edges.origin))
        trains = grad_mask if self.needs_reference else grad_mask & (advantage != 0)
        active = count.index_add(0, edges.origin, trains.long()) > 0
        every = torch.arange(len(edges.step), device=edges.step.device)
        if not grad_mask.all():
            edges, rows = take_origins(edges, every, grad_mask)
            advantage = advantage[rows]
        return EdgeExamples(edges, advantage, terms, active)

    def loss(
        self, examples: EdgeExamples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are ratio, clipped, approx_kl and, with a reference, reference_kl."""
        edges = examples.edges
        velocity = policy(*examples.start)
        mean, std = step_of_edges(edges, velocity, self.transition)
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
            distance = kl(mean, step_of_edges(edges, reference_velocity, self.transition)[0], std)
        return loss + self.kl * distance, {**metrics, "reference_kl": distance.detach()}

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Largest |ratio - 1| of every recorded step, by the loss's own code path, gradients on as in an update."""
        return ratio_errors(rollout.edges, policy, self.transition, micro_batch)
