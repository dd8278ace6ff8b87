"""Losses of the update, one value a row, so that a caller who splits rows into micro-batches can normalise over all."""

from __future__ import annotations

import torch
from torch import Tensor

from diffrl.functional.gaussian import row_mean


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped policy loss, one value an edge.

        max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high)),   rho = exp(log_prob - old_log_prob)

    PPO, arXiv 1707.06347, equation 7 (here as a loss), used by GRPO and Flow-GRPO; separate bounds as in DAPO,
    arXiv 2503.14476. The log-probs are averaged over the latent's dimensions, so rho is the geometric mean of the
    per-dimension ratios and the clip range is small (1e-5 to 1e-3).

    The loss is not reduced: divide its sum by the number of edges of the whole update, not of a micro-batch, and the
    gradient does not depend on how edges were split.

    Args:
        log_prob: (E,) under the policy being trained; carries the gradient.
        old_log_prob: (E,) under the policy that drew the steps.
        advantage: (E,).
        clip_low: how far below 1 rho counts, at least 0.
        clip_high: how far above 1 rho counts, at least 0.

    Returns:
        The loss, (E,) float32, and detached metrics, (E,) float32 each, unreduced like the loss: `ratio`, rho;
        `ratio_error`, |rho - 1|; `clipped`, 1 where the clip removes the edge's gradient (rho above the range with
        A > 0, or below it with A < 0), else 0; `approx_kl`, rho - 1 - ln rho, whose mean estimates KL(old || new)
        without bias and is never negative (k3 in Schulman, "Approximating KL Divergence", 2020).

    Raises:
        ValueError: the three tensors are not all (E,) with E at least 1, or a clip bound is negative.
    """
    if log_prob.ndim != 1 or not log_prob.shape == old_log_prob.shape == advantage.shape or log_prob.numel() == 0:
        raise ValueError(
            "log_prob, old_log_prob and advantage must all be (E,) with E >= 1. "
            f"Got {tuple(log_prob.shape)}, {tuple(old_log_prob.shape)} and {tuple(advantage.shape)}."
        )
    if not (clip_low >= 0 and clip_high >= 0):
        raise ValueError(f"Clip bounds must be at least 0. Got clip_low={clip_low}, clip_high={clip_high}.")
    log_ratio = log_prob.float() - old_log_prob.float()
    ratio = log_ratio.exp()
    advantage = advantage.float()
    removed = ((advantage > 0) & (ratio > 1.0 + clip_high)) | ((advantage < 0) & (ratio < 1.0 - clip_low))
    # The formula's max, its branch chosen by hand: torch.maximum halves the gradient where both branches are equal.
    loss = -advantage * torch.where(removed, ratio.clamp(1.0 - clip_low, 1.0 + clip_high), ratio)
    return loss, _ratio_metrics(log_ratio.detach(), removed)


def velocity_kl(v: Tensor, v_ref: Tensor) -> Tensor:
    """Squared distance of two velocities, averaged over the latent's dimensions: a KL up to the step's scale.

        mean over non-batch dims of (v - v_ref)^2

    DiffusionNFT, arXiv 2509.16117, its regulariser; Flow-GRPO's KL (arXiv 2505.05470) without the weight that depends
    on the noise level.

    Args:
        v: (B, ...) the policy's velocity; carries the gradient.
        v_ref: (B, ...) the reference's velocity.

    Returns:
        (B,) float32.
    """
    return row_mean((v.float() - v_ref.float()).square())


def _ratio_metrics(log_ratio: Tensor, removed: Tensor) -> dict[str, Tensor]:
    deviation = torch.expm1(log_ratio)  # rho - 1, without the cancellation that would drown k3 near rho = 1
    return {
        "ratio": log_ratio.exp(),
        "ratio_error": deviation.abs(),
        "clipped": removed.float(),
        "approx_kl": (deviation - log_ratio).clamp_min(0.0),
    }
