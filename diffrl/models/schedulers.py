"""Noise levels of pipelines whose schedulers are multi-step solvers, or shift by resolution."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor


def flow_sigmas(scheduler: Any, steps: int) -> Tensor:
    """The grid that a flow-matching scheduler visits: (steps + 1,) float32, 1 down to 0.

    DPM-Solver++ and UniPC, which SANA and Wan ship, begin at sigma = .999, shifted (.9997 with a shift of 3), although
    they begin with pure noise. The first level is set to 1 here: that is what pure noise is, and a stochastic step's
    noise, which grows like sqrt(sigma / (1 - sigma)), would explode there. All others are the scheduler's own.

    Args:
        scheduler: of the pipeline; it is not changed.
        steps: network calls.
    """
    own = copy.deepcopy(scheduler)
    own.set_timesteps(steps)
    sigmas: Tensor = own.sigmas.to(torch.float32, copy=True)
    sigmas[0] = 1.0
    return sigmas


def shifted_sigmas(scheduler: Any, steps: int, tokens: int) -> Tensor:
    """Evenly spaced levels, shifted by the number of picture tokens, as FLUX.1 and Qwen-Image run them.

    Args:
        scheduler: of the pipeline; it is not changed.
        steps: network calls.
        tokens: of a picture.

    Returns:
        (steps + 1,) float32, 1 down to 0.
    """
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    own = copy.deepcopy(scheduler)
    defaults = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}
    mu = calculate_shift(tokens, *(own.config.get(name, value) for name, value in defaults.items()))
    own.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    sigmas: Tensor = own.sigmas.to(torch.float32)
    return sigmas
