"""The noise levels that a pipeline's scheduler visits."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def flow_sigmas(scheduler: Any, steps: int, tokens: int = 0) -> Tensor:
    """Return the grid of a flow-matching scheduler: (steps + 1,) float32, 1 down to 0.

    DPM-Solver++ and UniPC, which SANA and Wan ship, begin at sigma = .999, shifted (.9997 with a shift of 3), although
    they begin with pure noise. The first level is set to 1 here: that is what pure noise is, and a stochastic step's
    noise, which grows like sqrt(sigma / (1 - sigma)), would explode there. All others are the scheduler's own.

    Args:
        scheduler: of the pipeline; it is not changed.
        steps: network calls.
        tokens: of a picture, for a scheduler that shifts by resolution (esser et al., arXiv 2403.03206, eq. 23).
    """
    copied = copy.deepcopy(scheduler)
    copied.set_timesteps(steps, **({"mu": _mu(copied, tokens)} if copied.config.get("use_dynamic_shifting") else {}))
    sigmas: Tensor = copied.sigmas.float().clone()
    sigmas[0] = 1.0
    return sigmas


def shifted_sigmas(scheduler: Any, steps: int, tokens: int = 0, mu: float | None = None) -> Tensor:
    """Return evenly spaced levels, shifted as the scheduler says: by resolution (FLUX.1) or by a number (Z-Image).

    Args:
        scheduler: of the pipeline; it is not changed.
        steps: network calls.
        tokens: of a picture, by which a scheduler with a dynamic shift shifts.
        mu: that shift where it is counted in another way.

    Returns:
        (steps + 1,) float32, 1 down to 0.
    """
    import numpy as np
    import torch

    if steps == 1:  # any shift leaves 1 where it is; to stretch a single level, as Qwen-Image's does, divides 0 by 0
        return torch.tensor([1.0, 0.0])
    copied = copy.deepcopy(scheduler)
    copied.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=_mu(copied, tokens) if mu is None else mu)
    sigmas: Tensor = copied.sigmas.float()
    return sigmas


def _mu(scheduler: Any, tokens: int) -> float:
    """Return the shift of a picture of so many tokens."""
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    defaults = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}
    shift: float = calculate_shift(tokens, *(scheduler.config.get(name, value) for name, value in defaults.items()))
    return shift
