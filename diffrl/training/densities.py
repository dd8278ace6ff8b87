"""Densities of recorded steps in the update's own batches, where the network computes below float32.

The same weights give other velocities in batches of other sizes: by up to 8e-5 in the ratio on SD3.5-M in bfloat16,
where recipes clip at 1e-4. So a step is not compared with what the rollout gave it, but with what the update's own call
of the network gives it before any weight has changed. The first update of an iteration is that call. What later ones
train on is asked once more before it, without gradient, in the same batches: then no rounding is left in the ratio. A
rollout in batches of the update's size would leave some, in calls that are not full: which these are is known only when
credit is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffrl.objectives.examples import Examples
from diffrl.rollout.denoise import Velocity
from diffrl.training.session import Session
from diffrl.training.update import batches


@torch.no_grad()
def own_densities(
    session: Session, examples: Sequence[Examples], shares: Sequence[Sequence[Tensor]], predict: Sequence[Velocity]
) -> list[Examples]:
    """Give the steps of every update the densities of the policy as it is; of the first where its loss does not.

    Args:
        session: its meter counts what is left out.
        examples: of each loss.
        shares: of each loss the units (B,) of each update.
        predict: velocities of the policy, as each loss is given them.
    """
    calls = session.config.model.facts.calls_per_step
    retaken: list[Examples] = []
    for loss, own, dealt, velocity in zip(session.losses, examples, shares, predict, strict=True):
        if loss.objective.trains == "steps":
            later = dealt[int(loss.objective.knows_on_policy) :]
            idle = sum(int((~own.active[share]).sum()) for share in later)
            session.meter.skipped += idle * calls(loss.guidance)
            pieces = [piece for share in later for piece in batches(own, share, session.config.train.micro_batch)]
            own = loss.objective.retake_densities(own, pieces, velocity)
        retaken.append(own)
    return retaken
