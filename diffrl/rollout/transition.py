"""One denoising step as the rollout and the objectives see it: `(x, v, sigma, sigma_next) -> Step(mean, std)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from diffrl.functional.dynamics import Step
from diffrl.registry import DYNAMICS, resolve

Transition = Callable[[Tensor, Tensor, Tensor, Tensor], Step]


def make_transition(kind: str, sigmas: Tensor, **options: float) -> Transition:
    """Bind the options of a dynamics.

    Args:
        kind: registered name (ode, flow_sde, dance_sde, cps) or "module:function".
        sigmas: (T + 1,) the grid; `flow_sde` needs its second entry, where the noise of its first step is regularised.
        **options: noise_level, eta: what the dynamics takes.
    """
    step = resolve("rollout.dynamics.kind", DYNAMICS, kind)
    if kind == "flow_sde":
        options["sigma_max"] = float(sigmas[1])
    return partial(step, **options)
