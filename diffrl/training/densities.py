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

from torch import Tensor

from diffrl.objectives.examples import Examples
from diffrl.rollout.denoise import Velocity
from diffrl.training.gradient import LossTerm, batches


def own_densities(
    losses: Sequence[LossTerm],
    examples: Sequence[Examples],
    shares: Sequence[Sequence[Tensor]],
    predict: Sequence[Velocity],
    micro_batch: int,
) -> tuple[list[Examples], list[int]]:
    """Give the steps of every update the densities of the policy as it is; of the first where its loss does not.

    Args:
        losses: that an update adds up.
        examples: of each.
        shares: of each the units (B,) of each update.
        predict: velocities of the policy without gradient, as each loss is given them.
        micro_batch: units a call of the update.

    Returns:
        The examples, and how many units of each loss would have been asked and are inactive.
    """
    retaken, idle = [], []
    for loss, units, dealt, velocity in zip(losses, examples, shares, predict, strict=True):
        later = dealt[int(loss.objective.knows_on_policy) :] if loss.objective.trains == "steps" else []
        idle.append(sum(int((~units.active[share]).sum()) for share in later))
        pieces = [piece for share in later for piece in batches(units, share, micro_batch)]
        retaken.append(loss.objective.retake_densities(units, pieces, velocity) if pieces else units)
    return retaken, idle
