"""What hears of an iteration's updates while they are made: the updates know nothing of costs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from diffrl.cost.meter import CostMeter
from diffrl.rollout.denoise import Velocity


class UpdateObserver:
    """Hears what an iteration's updates ask of the networks; this one listens to nothing."""

    def during(self, purpose: str) -> AbstractContextManager[None]:
        """Stand around evaluations for one of `cost.meter.PURPOSES`."""
        return nullcontext()

    def left_out(self, policy: Sequence[int], reference: int = 0) -> None:
        """Receive how many planned evaluations are not made; below 0, how many were made beside the plan.

        Args:
            policy: of each loss, guidance left out.
            reference: of the model before alignment, guidance left out.
        """

    def heard(self, purpose: str, velocity: Velocity) -> Velocity:
        """Return the same velocities without gradient, asked for this purpose."""

        @torch.no_grad()
        def asked(latents: Tensor, sigma: Tensor, prompt: Tensor) -> Tensor:
            with self.during(purpose):
                return velocity(latents, sigma, prompt)

        return asked


@dataclass(frozen=True)
class MeteredUpdates(UpdateObserver):
    """Counts them in a meter.

    Args:
        meter: of the run.
        calls: network evaluations of one velocity of each loss.
        reference_calls: the same of the model before alignment.
    """

    meter: CostMeter
    calls: Sequence[int]
    reference_calls: int

    def during(self, purpose: str) -> AbstractContextManager[None]:
        """Count evaluations under the purpose."""
        return self.meter.purpose(purpose)

    def left_out(self, policy: Sequence[int], reference: int = 0) -> None:
        """Count them as skipped."""
        self.meter.skipped += sum(number * calls for number, calls in zip(policy, self.calls, strict=True))
        self.meter.skipped += reference * self.reference_calls
