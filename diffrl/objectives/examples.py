"""What an objective trains on, and what is asked of a network for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from torch import Tensor

    from diffrl.rollout.denoise import Velocity


class Examples(Protocol):
    """What an objective trains on in one iteration: M units, each one network evaluation, with one term or more."""

    @property
    def prompt(self) -> Tensor:
        """(M,) int64 row of each unit's prompt in the batch."""
        ...

    @property
    def terms(self) -> Tensor:
        """(M,) int64 terms of the loss that each unit stands for."""
        ...

    @property
    def term_prompt(self) -> Tensor:
        """(T,) int64 row of the prompt of each term that `Objective.loss` gives, in its order."""
        ...

    @property
    def active(self) -> Tensor:
        """(M,) bool, False for units whose gradient is zero by construction: they are counted and not evaluated."""
        ...

    @property
    def start(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the network is asked: latents (M, ...), sigma (M,), prompt rows (M,)."""
        ...

    def take(self, index: Tensor) -> Self:
        """Return the units at `index` (B,) int64."""
        ...


@dataclass(frozen=True)
class States:
    """Examples of which each unit is one term; what an objective needs beside these are further columns (M, ...).

    Args:
        latents: (M, ...) what the network is asked.
        sigma: (M,) float32 noise levels.
        prompt: (M,) int64 rows of the prompts.
        active: (M,) bool.
    """

    latents: Tensor
    sigma: Tensor
    prompt: Tensor
    active: Tensor

    @property
    def terms(self) -> Tensor:
        """One a unit."""
        import torch

        return torch.ones_like(self.prompt)

    @property
    def term_prompt(self) -> Tensor:
        """(M,) int64 row of each unit's prompt."""
        return self.prompt

    @property
    def start(self) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, noise levels and prompt rows."""
        return self.latents, self.sigma, self.prompt

    def take(self, index: Tensor) -> Self:
        """Return the units at `index`."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return replace(self, **{name: column[index.to(column.device)] for name, column in columns.items()})


def predict_active(
    velocity: Velocity, start: tuple[Tensor, Tensor, Tensor], active: Tensor, micro_batch: int
) -> Tensor:
    """Return velocities (M, ...) of the units that are active, zeros for the others.

    Args:
        velocity: is asked in calls of at most `micro_batch`.
        start: latents (M, ...), sigma (M,), prompt rows (M,).
        active: (M,) bool.
        micro_batch: evaluations a call.
    """
    import torch

    predicted = torch.zeros_like(start[0])
    index = torch.nonzero(active).flatten()
    for part in torch.split(index, micro_batch) if len(index) else ():
        predicted[part] = velocity(*(column[part] for column in start))
    return predicted


def add_reference_kl(
    loss: Tensor,
    metrics: Mapping[str, Tensor],
    velocity: Tensor,
    examples: States,
    reference: Velocity | None,
    weight: float,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return a loss and weight * mean |v - v_ref|^2, with reference_kl among its metrics.

    Args:
        loss: (B,).
        metrics: of the loss, (B,) each.
        velocity: (B, ...) the policy's.
        examples: what it was asked.
        reference: the reference policy; None = nothing is added.
        weight: of the distance.
    """
    from diffrl.functional.losses import velocity_kl

    if reference is None:
        return loss, metrics
    distance = velocity_kl(velocity, reference(*examples.start))
    return loss + weight * distance, {**metrics, "reference_kl": distance.detach()}
