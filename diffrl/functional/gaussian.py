"""Densities of Gaussian steps: the only copies.

Both are averaged, not summed, over the non-batch dimensions: the field's clip ranges (1e-5 to 1e-3) assume it. Both
are float32 whatever the inputs' dtype. `x` must be the latent *as stored*: round it to its storage dtype before it is
scored, or the ratio of an unchanged policy is not 1.
"""

from __future__ import annotations

import math

from torch import Tensor

from diffrl.functional.dynamics import per_row


def log_prob(x: Tensor, mean: Tensor, std: float | Tensor) -> Tensor:
    """Return log-density of a step, averaged over the latent's dimensions.

        mean over non-batch dims of [-(x - mean)^2 / (2 std^2) - ln std - ln(2 pi) / 2]

    Flow-GRPO, arXiv 2505.05470, the policy of equation 9, averaged as in the published code.

    Args:
        x: (B, ...) latents after the step, as stored.
        mean: (B, ...) the step's mean.
        std: the step's standard deviation, above 0: a number, (B,) or (B or 1, 1, ..., 1) as in `Step`.

    Returns:
        (B,) float32, in nats per dimension.

    Raises:
        ValueError: `std` is 0 (an ODE step), negative or NaN anywhere. The check waits for the device once.
    """
    std = _positive(per_row(std, mean))
    z = (x.float() - mean.float()) / std
    return row_mean(-0.5 * z.square() - std.log()) - 0.5 * math.log(2.0 * math.pi)


def kl(mean: Tensor, mean_ref: Tensor, std: float | Tensor) -> Tensor:
    """Return KL divergence between two steps of the same std, averaged over the latent's dimensions.

        mean over non-batch dims of (mean - mean_ref)^2 / (2 std^2)

    Flow-GRPO, arXiv 2505.05470, the closed form of the KL between two policies of equation 9.

    Args:
        mean: (B, ...) the policy's mean.
        mean_ref: (B, ...) the reference's mean.
        std: their common standard deviation, above 0: a number, (B,) or (B or 1, 1, ..., 1).

    Returns:
        (B,) float32, in nats per dimension.

    Raises:
        ValueError: `std` is 0 (an ODE step), negative or NaN anywhere. The check waits for the device once.
    """
    std = _positive(per_row(std, mean))
    return row_mean(0.5 * ((mean.float() - mean_ref.float()) / std).square())


def row_mean(x: Tensor) -> Tensor:
    """Return mean over all dimensions but the first: (B, ...) -> (B,)."""
    return x.unsqueeze(-1).flatten(start_dim=1).mean(dim=1)


def _positive(std: Tensor) -> Tensor:
    if not bool((std > 0.0).all()):
        raise ValueError("std must be above 0 everywhere: ODE steps have no density. Score stochastic steps only.")
    return std
