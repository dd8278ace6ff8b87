"""One denoising step from sigma to sigma_next, as a Gaussian: the next latent is `mean + std * noise`.

Every sampler is a function `(x, v, sigma, sigma_next, ...) -> Step(mean, std)`; `ab2_step` takes the step before too.
Notation, as in the papers:

    s, n    sigma, sigma_next: noise levels in [0, 1], n < s     d = s - n > 0
    x       latents at s, x = (1 - s) * x0 + s * eps             v = eps - x0, the predicted velocity at (x, s)
    x0hat = x - s * v        epshat = x + (1 - s) * v            the image and the noise that v implies

Shapes: x and v are (B, ...). A noise level is a number, a 0-d tensor or a (B,) tensor, one entry a row; put tensors on
x's device. Everything is computed and returned in float32, whatever the dtype of x. `mean` has x's shape; `std` has
x's rank, (B, 1, ..., 1) where it differs by row and (1, ..., 1) where it does not, ready to broadcast.

What is not checked here, since looking at a tensor's values would stall the device: callers keep n < s. A step to
n = 0 is never stochastic (its noise would go straight into the image), so for it callers use `ode_step` or `ab2_step`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """The distribution of the next latent, N(mean, std^2): mean (B, ...), std (B or 1, 1, ..., 1), both float32."""

    mean: Tensor
    std: Tensor


def ode_step(x: Tensor, v: Tensor, sigma: float | Tensor, sigma_next: float | Tensor) -> Step:
    """Return Euler step of the probability-flow ODE: deterministic, so it has no density.

        mean = x - d * v,   std = 0

    Args:
        x: (B, ...) latents at `sigma`.
        v: (B, ...) predicted velocity.
        sigma: s, number or (B,), in (0, 1].
        sigma_next: n, number or (B,), in [0, s).

    Returns:
        Step with std 0.

    Raises:
        ValueError: a noise level is neither a number nor one entry a row.
    """
    s, n = per_row(sigma, x), per_row(sigma_next, x)
    d = s - n
    return Step(x.float() - d * v.float(), torch.zeros_like(d))


def ab2_step(
    x: Tensor,
    v: Tensor,
    v_prev: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    sigma_prev: float | Tensor,
) -> Step:
    """Return two-step Adams-Bashforth step of the probability-flow ODE, for steps of any lengths: deterministic.

        mean = x + h * ((1 + w) * v - w * v_prev),   std = 0,   h = n - s,   w = h / (2 * (s - sigma_prev))

    It integrates the line through the last two velocities, so it is of second order where Euler is of first; on a
    uniform grid the weights are 3/2 and -1/2. Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I",
    section III.5. It needs the velocity of the step before on the same trajectory: noise breaks that, so after a
    stochastic step callers begin anew with `ode_step`.

    Args:
        x: (B, ...) latents at `sigma`.
        v: (B, ...) predicted velocity there.
        v_prev: (B, ...) velocity predicted at `sigma_prev`, one step earlier on the trajectory.
        sigma: s, number or (B,), in (0, 1).
        sigma_next: n, number or (B,), in [0, s).
        sigma_prev: number or (B,), in (s, 1].

    Returns:
        Step with std 0.

    Raises:
        ValueError: a noise level is neither a number nor one entry a row.
    """
    s, n, before = per_row(sigma, x), per_row(sigma_next, x), per_row(sigma_prev, x)
    h = n - s
    w = h / (2.0 * (s - before))
    v = v.float()
    return Step(x.float() + h * (v + w * (v - v_prev.float())), torch.zeros_like(h))


def flow_sde_step(
    x: Tensor,
    v: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    noise_level: float,
    sigma_max: float | Tensor,
) -> Step:
    """Return Flow-GRPO's SDE step, which has the marginals of the ODE.

        mean = x - d * (v + g^2 / (2 s) * epshat),   std = g * sqrt(d),   g = noise_level * sqrt(s / (1 - s))

    Flow-GRPO, arXiv 2505.05470, equation 9. At s = 1, where g is infinite, the denominator uses 1 - sigma_max, as in
    the published code.

    Args:
        x: (B, ...) latents at `sigma`.
        v: (B, ...) predicted velocity.
        sigma: s, number or (B,), in (0, 1].
        sigma_next: n, number or (B,), in (0, s).
        noise_level: the paper's a, at least 0; 0.7 in the paper, 0 gives the ODE.
        sigma_max: the grid's second entry, sigma[1]: number or 0-d tensor, in (0, 1).

    Returns:
        Step with the density's mean and standard deviation.

    Raises:
        ValueError: `noise_level` is negative, or a noise level is neither a number nor one entry a row.
    """
    _require_non_negative(noise_level, "noise_level")
    s, n, top = per_row(sigma, x), per_row(sigma_next, x), per_row(sigma_max, x)
    diffusion = noise_level * torch.sqrt(s / (1.0 - torch.where(s == 1.0, top, s)))
    return _sde_step(x, v, s, n, diffusion)


def dance_sde_step(x: Tensor, v: Tensor, sigma: float | Tensor, sigma_next: float | Tensor, eta: float) -> Step:
    """Return DanceGRPO's SDE step: the same SDE with the same diffusion coefficient at every noise level.

        mean = x - d * (v + eta^2 / (2 s) * epshat),   std = eta * sqrt(d)

    DanceGRPO, arXiv 2505.07818, the SDE for rectified flows; it is dx = (v - eta^2 / 2 * score) dsigma + eta dw with
    the marginal's score -epshat / s.

    Args:
        x: (B, ...) latents at `sigma`.
        v: (B, ...) predicted velocity.
        sigma: s, number or (B,), in (0, 1].
        sigma_next: n, number or (B,), in (0, s).
        eta: diffusion coefficient, at least 0; 0.3 in the paper, 0 gives the ODE.

    Returns:
        Step with the density's mean and standard deviation.

    Raises:
        ValueError: `eta` is negative, or a noise level is neither a number nor one entry a row.
    """
    _require_non_negative(eta, "eta")
    s, n = per_row(sigma, x), per_row(sigma_next, x)
    return _sde_step(x, v, s, n, torch.full_like(s, eta))


def cps_step(x: Tensor, v: Tensor, sigma: float | Tensor, sigma_next: float | Tensor, noise_level: float) -> Step:
    """Return coefficient-preserving sampling: fresh noise replaces part of the predicted noise, so the total stays n.

        mean = (1 - n) * x0hat + sqrt(n^2 - q^2) * epshat,   std = q = n * sin(noise_level * pi / 2)

    Flow-CPS, arXiv 2509.05952. The published code drops the density's constants; here `std` is the density's own.
    Unlike the SDEs its noise does not shrink with the step, so many short steps lose the data's spread.

    Args:
        x: (B, ...) latents at `sigma`.
        v: (B, ...) predicted velocity.
        sigma: s, number or (B,), in (0, 1].
        sigma_next: n, number or (B,), in (0, s).
        noise_level: in [0, 1]: 0 gives the ODE, 1 replaces all predicted noise.

    Returns:
        Step with the density's mean and standard deviation.

    Raises:
        ValueError: `noise_level` is outside [0, 1], or a noise level is neither a number nor one entry a row.
    """
    if not 0.0 <= noise_level <= 1.0:
        raise ValueError(f"noise_level of cps must be in [0, 1]. Got {noise_level}.")
    s, n = per_row(sigma, x), per_row(sigma_next, x)
    x, v = x.float(), v.float()
    x0hat, epshat = x - s * v, x + (1.0 - s) * v
    angle = noise_level * math.pi / 2.0
    # n * cos(angle) is sqrt(n^2 - q^2), without the difference that could round below 0.
    return Step((1.0 - n) * x0hat + n * math.cos(angle) * epshat, n * math.sin(angle))


def per_row(value: float | Tensor, x: Tensor) -> Tensor:
    """Return a quantity with one value a row, shaped to broadcast over x.

    Args:
        value: a number, a tensor of one element, or a tensor of B elements such as (B,) or (B, 1, ..., 1).
        x: (B, ...) tensor whose rank and device the result takes.

    Returns:
        float32, (1, 1, ..., 1) or (B, 1, ..., 1).

    Raises:
        ValueError: `value` has neither 1 nor B elements.
    """
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=torch.float32, device=x.device)
    if value.numel() not in (1, x.shape[0]):
        raise ValueError(
            f"Expected a number or one value for each of {x.shape[0]} rows. Got a tensor of shape {tuple(value.shape)}."
        )
    return value.to(device=x.device, dtype=torch.float32).reshape(-1, *[1] * (x.ndim - 1))


def _sde_step(x: Tensor, v: Tensor, s: Tensor, n: Tensor, g: Tensor) -> Step:
    """Return Euler-Maruyama step of dx = (v - g^2 / 2 * score) dsigma + g dw, with score = -epshat / s."""
    x, v = x.float(), v.float()
    d = s - n
    epshat = x + (1.0 - s) * v
    return Step(x - d * (v + g.square() / (2.0 * s) * epshat), g * d.sqrt())


def _require_non_negative(value: float, name: str) -> None:
    if not value >= 0.0:
        raise ValueError(f"{name} must be at least 0. Got {value}.")
