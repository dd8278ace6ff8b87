"""What the trainer asks of an objective. Objectives know records and tensors, nothing of models or configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from diffrl.functional.losses import velocity_kl
from diffrl.records import Credit, Rollout
from diffrl.rollout.denoise import Velocity
from diffrl.rollout.transition import Transition


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
        """The units at `index` (B,) int64."""
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
        """The units at `index`."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return replace(self, **{name: column[index.to(column.device)] for name, column in columns.items()})


@dataclass(frozen=True)
class RunContext:
    """What a run gives to every objective that is built for it: `Objective.build(context, **options)`.

    Args:
        transition: dynamics of the stochastic steps; None if there are none.
        seed: of the run.
        old_is_policy: the policy that drew the samples is the one that is trained, and every example is used before it
            changes.
    """

    transition: Transition | None
    seed: int
    old_is_policy: bool


Some = TypeVar("Some", bound=Examples)


class Objective(Protocol[Some]):
    """A loss over examples."""

    @property
    def needs_reference(self) -> bool:
        """Whether `loss` asks the reference policy for velocities."""
        ...

    @property
    def needs_old_velocity(self) -> bool:
        """Whether `examples` asks the old policy for velocities, one a unit that is active."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `loss` gives."""
        ...

    def examples(self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int) -> Some:
        """What an iteration trains on.

        Args:
            rollout: samples and recorded steps.
            credit: their advantages.
            grad_mask: (N,) bool, False for nodes whose edges pruning takes out of the gradient.
            old: velocities, without gradient, of the policy that drew the samples.
            micro_batch: evaluations a call.
        """
        ...

    def loss(self, examples: Some, policy: Velocity, reference: Velocity | None) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss of each term, unreduced so that the caller can normalise over micro-batches, and metrics like it."""
        ...

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Before any update: by how much each recorded step's ratio differs from 1, as (step, error), by step."""
        ...


@runtime_checkable
class GroupObjective(Protocol):
    """An objective beside `Objective` whose terms depend on what the policy makes of their whole group.

    Its examples have `cell`, (M,) int64: units of one cell are compared with each other, and train in one update.
    """

    @property
    def group_evaluations(self) -> int:
        """Network evaluations without gradient that `compared` asks for, of each active unit."""
        ...

    def compared(
        self, examples: Any, index: Tensor, policy: Velocity, reference: Velocity | None, micro_batch: int
    ) -> Any:
        """The examples, of which the units at `index` know what their loss needs of their group.

        Args:
            examples: of the iteration.
            index: (B,) int64 units of the update that comes next, whole cells.
            policy: velocities, without gradient, of the weights that this update starts from.
            reference: the reference policy's, without gradient.
            micro_batch: evaluations a call.
        """
        ...


def asked(velocity: Velocity, start: tuple[Tensor, Tensor, Tensor], active: Tensor, micro_batch: int) -> Tensor:
    """Velocities (M, ...) of the units that are active, zeros for the others.

    Args:
        velocity: is asked in calls of at most `micro_batch`.
        start: latents (M, ...), sigma (M,), prompt rows (M,).
        active: (M,) bool.
        micro_batch: evaluations a call.
    """
    found = torch.zeros_like(start[0])
    index = torch.nonzero(active).flatten()
    for part in index.split(micro_batch) if len(index) else ():
        found[part] = velocity(*(column[part] for column in start))
    return found


def pulled(
    loss: Tensor,
    metrics: Mapping[str, Tensor],
    velocity: Tensor,
    examples: States,
    reference: Velocity | None,
    weight: float,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """A loss with the pull to the reference, weight * mean |v - v_ref|^2, and reference_kl among its metrics.

    Args:
        loss: (B,).
        metrics: of the loss, (B,) each.
        velocity: (B, ...) the policy's.
        examples: what it was asked.
        reference: the reference policy; None = no pull.
        weight: of the pull.
    """
    if reference is None:
        return loss, metrics
    distance = velocity_kl(velocity, reference(*examples.start))
    return loss + weight * distance, {**metrics, "reference_kl": distance.detach()}
