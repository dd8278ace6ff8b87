"""Sigma grids: the noise levels a sampler visits, from 1 (noise) down to 0 (image)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sigma_grid(steps: int, shift: float = 1.0) -> Tensor:
    """Return the noise levels of a sampler with `steps` steps, spread evenly and then shifted towards noise.

        s_i = shift * u_i / (1 + (shift - 1) * u_i),   u = linspace(1, 0, steps + 1)

    The shift is that of SD3 (arXiv 2403.03206, section 5.3.2, "resolution-dependent shifting of timestep schedules").

    Args:
        steps: number of denoising steps T, at least 1.
        shift: 1 leaves the grid even; above 1 spends more steps near noise. Must be positive and finite.

    Returns:
        (steps + 1,) float32 sigmas in [0, 1], on the CPU; the ends are exactly 1 and 0.

    Raises:
        ValueError: `steps` is below 1, or `shift` is not a positive finite number.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1. Got {steps}.")
    if not (shift > 0 and math.isfinite(shift)):
        raise ValueError(f"shift must be a positive finite number. Got {shift}.")
    even = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)
    # The denominator is 1 + (shift - 1) * u, written so that it is exactly `shift` at u = 1 whatever the shift.
    return (shift * even / ((1.0 - even) + shift * even)).float()


def merged_end(sigmas: Tensor) -> Tensor:
    """Return a grid whose last two steps are one: its last level above 0 is left out.

    diffusers' flow-matching schedulers end at sigma_min, about .001, before 0, so that their last step costs a network
    evaluation and moves the latents by a thousandth.

    Args:
        sigmas: (T + 2,) from 1 to 0, T at least 1.

    Returns:
        (T + 1,) from 1 to 0.
    """
    return torch.cat([sigmas[:-2], sigmas[-1:]])
