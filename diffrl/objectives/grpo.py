"""GRPO over denoising steps: the clipped surrogate of each edge, with an optional pull to the reference policy.

Flow-GRPO (arXiv 2505.05470, eq. 4-7), with log-probabilities averaged over latent dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from diffrl.functional.gaussian import kl, log_prob
from diffrl.functional.losses import clipped_surrogate, velocity_kl
from diffrl.objectives.base import VelocityOf
from diffrl.records import Edges
from diffrl.transition import Transition


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

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy is evaluated."""
        return self.kl > 0

    def log_prob(self, edges: Edges, velocity: Tensor) -> Tensor:
        """Density (E,) of each edge under a policy that predicts `velocity` (E, ...) at its start."""
        mean, std = self.transition(edges.latents, velocity, edges.sigma, edges.sigma_next)
        return log_prob(edges.next_latents, mean, std)

    def loss(
        self, edges: Edges, advantage: Tensor, policy: VelocityOf, reference: VelocityOf | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `Objective.loss`; metrics are ratio, clipped, approx_kl and, with a reference, reference_kl."""
        velocity = policy(edges)
        mean, std = self.transition(edges.latents, velocity, edges.sigma, edges.sigma_next)
        density = log_prob(edges.next_latents, mean, std)
        loss, metrics = clipped_surrogate(density, edges.old_log_prob, advantage, self.clip_low, self.clip_high)
        if reference is None:
            return loss, metrics
        reference_velocity = reference(edges)
        if self.kl_form == "velocity":
            distance = velocity_kl(velocity, reference_velocity)
        else:
            reference_mean, _ = self.transition(edges.latents, reference_velocity, edges.sigma, edges.sigma_next)
            distance = kl(mean, reference_mean, std)
        return loss + self.kl * distance, {**metrics, "reference_kl": distance.detach()}
