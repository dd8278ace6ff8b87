"""One denoising step as the rollout and the objectives see it: `(x, v, sigma, sigma_next) -> Step(mean, std)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.functional.dynamics import Step
from diffrl.registry import DYNAMICS, own_code, resolve

Transition = Callable[[Tensor, Tensor, Tensor, Tensor], Step]


def make_transition(kind: str, sigmas: Tensor, **options: Any) -> Transition:
    """Bind the options of a dynamics.

    Args:
        kind: registered name (ode, flow_sde, dance_sde, cps) or "module:function".
        sigmas: (T + 1,) the grid; `flow_sde` needs its second entry, where the noise of its first step is regularised.
        **options: noise_level, eta: what the dynamics takes.

    Raises:
        DiffrlError: a function of the user's own gives what is no distribution of the next latents.
    """
    step = resolve("rollout.dynamics.kind", DYNAMICS, kind)
    if kind == "flow_sde":
        options["sigma_max"] = float(sigmas[1])
    transition = partial(step, **options)
    if kind not in DYNAMICS:
        require_step(kind, transition, sigmas)
    return transition


def require_step(name: str, transition: Transition, sigmas: Tensor) -> None:
    """Hold a dynamics of the user's own against the contract of `functional.dynamics`, at each step of the grid.

    Args:
        name: for the message.
        transition: the function, its options bound.
        sigmas: (T + 1,) the grid; its last step is never stochastic.

    Raises:
        DiffrlError: names the rule that is broken, and at which noise level.
    """
    generator = torch.Generator().manual_seed(0)
    x, v = (torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float32) for _ in range(2))
    v.requires_grad_()
    for s, n in zip(sigmas[:-2].tolist(), sigmas[1:-1].tolist(), strict=True):
        with torch.enable_grad():
            arguments = (x.clone(), v.clone(), torch.full((2,), s), torch.full((2,), n))
        with own_code(f"The dynamics {name}, at the step from sigma {s:.4g} to {n:.4g},"), torch.enable_grad():
            step = transition(*arguments)
        problem = _broken_rule(step, x)
        if any(argument._version for argument in arguments):
            problem = "and work in place on none of its arguments. It changed one"
        if problem:
            raise DiffrlError(
                f"The dynamics {name} must return a diffrl.functional.dynamics.Step(mean, std) {problem}, at the step "
                f"from sigma {s:.4g} to {n:.4g}. Mend it."
            )


def _broken_rule(step: Any, x: Tensor) -> str | None:
    """Return what a step of latents x (B, ...) does not keep; None if all is well."""
    if not isinstance(step, tuple) or len(step) != 2 or not all(isinstance(part, Tensor) for part in step):
        return f"of two tensors. Got a {type(step).__name__}"
    mean, std = step
    if mean.shape != x.shape or mean.dtype != torch.float32:
        return f"whose mean is float32 of the latents' shape {tuple(x.shape)}. Got {mean.dtype} {tuple(mean.shape)}"
    if std.ndim != x.ndim or std.shape[0] not in (1, len(x)) or std[0].numel() != 1 or std.dtype != torch.float32:
        return f"whose std is float32 of shape (B or 1, 1, ..., 1). Got {std.dtype} {tuple(std.shape)}"
    if not bool(mean.isfinite().all()):
        return "whose mean is finite. Got NaN or inf"
    if not bool((std.isfinite() & (std > 0)).all()):
        return f"whose std is above 0 and finite, for a step without noise has no density. Got {std.flatten().tolist()}"
    if not mean.requires_grad:
        return "whose mean follows v with gradient: a step trains the network through it. Got one that has none"
    return None
