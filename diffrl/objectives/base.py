"""What the trainer asks of an objective. Objectives know records and tensors, nothing of models or configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from diffrl.records import Edges

VelocityOf = Callable[[Edges], Tensor]
"""Velocity (E, ...) that a policy predicts at the start of each edge."""


class Objective(Protocol):
    """A loss over edges."""

    needs_reference: bool
    """Whether `loss` asks the reference policy for velocities."""

    def loss(
        self, edges: Edges, advantage: Tensor, policy: VelocityOf, reference: VelocityOf | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss of each edge, (E,), unreduced so that the caller can normalise over micro-batches, and metrics (E,)."""
        ...
