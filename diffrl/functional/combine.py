"""How much a raw score counts: the share of one reward in the total."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # a page that adds up a few numbers need not load torch
    from torch import Tensor

Score = TypeVar("Score", float, "Tensor")


def scaled_reward(raw: Score, shift: float = 0.0, scale: float = 1.0, weight: float = 1.0) -> Score:
    """Return what a raw score adds to the total, weight * (raw - shift) / scale.

    Args:
        raw: scores of any shape, in the scorer's units; NaN stays NaN.
        shift: subtracted from them, in the same units.
        scale: divides them then; not 0.
        weight: factor in the total; 1 leaves the scaled score itself.

    Returns:
        Like `raw`.
    """
    return weight * (raw - shift) / scale
