"""Losses of the update, one value a row, so that a caller who splits rows into micro-batches can normalise over all."""

from __future__ import annotations

import torch
from torch import Tensor

from diffrl.functional.dynamics import per_row
from diffrl.functional.gaussian import row_mean


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's clipped policy loss, one value an edge.

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
    """Return squared distance of two velocities, averaged over the latent's dimensions: a KL up to the step's scale.

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


def nft_loss(
    v: Tensor,
    v_old: Tensor,
    x: Tensor,
    x0: Tensor,
    sigma: float | Tensor,
    r: Tensor,
    beta: float,
    eps: float = 1e-5,
    advantage_clip: float = 5.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return DiffusionNFT's loss, one value a row: good samples pull the velocity to them, bad ones push it away.

        advantage_clip * (r * L+ + (1 - r) * L-) / beta,   L± = mean (x0hat± - x0)^2 / max(mean |x0hat± - x0|, eps)
        x0hat± = x - sigma * v±,   v+ = beta * v + (1 - beta) * v_old,   v- = (1 + beta) * v_old - beta * v

    DiffusionNFT, arXiv 2509.16117, with the self-normalised weight and the factor of the published code.
    The means are over the row's own dimensions; the denominator is a weight and carries no gradient, nor does v_old.
    Where v = v_old the gradient is that of (2 r - 1) * advantage_clip * L+ / beta, and vanishes at r = 0.5.

    Args:
        v: (B, ...) the policy's velocity at (x, sigma); carries the gradient.
        v_old: (B, ...) the velocity of the policy that drew the samples.
        x: (B, ...) latents, (1 - sigma) * x0 + sigma * eps with fresh noise.
        x0: (B, ...) clean latents that were scored.
        sigma: number or (B,), in (0, 1].
        r: (B,) in [0, 1], from `optimality`.
        beta: strength of the guidance that v+ and v- imply, above 0.
        eps: floor of the weight's denominator, in units of the latents, above 0.
        advantage_clip: the bound that made r, above 0: it undoes the division, so the loss is in advantages.

    Returns:
        The loss, (B,) float32, and detached metrics, (B,) float32 each: `loss_plus` and `loss_minus`, L+ and L-;
        `velocity_gap`, mean (v - v_old)^2.

    Raises:
        ValueError: shapes differ, or `beta`, `eps` or `advantage_clip` is not above 0.
    """
    if not v.shape == v_old.shape == x.shape == x0.shape or r.shape != x.shape[:1]:
        shapes = [tuple(tensor.shape) for tensor in (v, v_old, x, x0, r)]
        raise ValueError(f"v, v_old, x and x0 must be of one shape (B, ...), and r (B,). Got {shapes}.")
    if not (beta > 0 and eps > 0 and advantage_clip > 0):
        raise ValueError(f"beta, eps and advantage_clip must be above 0. Got {beta}, {eps} and {advantage_clip}.")
    v, v_old, x, x0, r = v.float(), v_old.detach().float(), x.float(), x0.float(), r.float()
    # Not beta * v + (1 - beta) * v_old: written as a step from v_old, both are v_old to the last bit where v = v_old.
    move, level = beta * (v - v_old), per_row(sigma, x)

    def matching(velocity: Tensor) -> Tensor:
        error = x - level * velocity - x0
        return row_mean(error.square()) / row_mean(error.detach().abs()).clamp_min(eps)

    plus, minus = matching(v_old + move), matching(v_old - move)
    loss = advantage_clip * (r * plus + (1.0 - r) * minus) / beta
    metrics = {"loss_plus": plus, "loss_minus": minus, "velocity_gap": velocity_kl(v, v_old)}
    return loss, {name: value.detach() for name, value in metrics.items()}


def tilt_loss(
    v: Tensor, x: Tensor, sigma: float | Tensor, direction: Tensor, centre: Tensor, eps: float = 1e-5
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return tree tilt's loss, one value a node: the clean prediction moves along the covariance of reward and sample.

        -2 mean(C * (x0hat - xbar)) / scale,   x0hat = x - sigma * v,   scale = max(mean |x0hat - xbar|, eps)

    Its gradient is that of the regression mean (x0hat - (x0hat_old + C))^2 / scale at the old policy, where
    x0hat = x0hat_old. The optimum of reward under a KL leash, p*(x0) ~ p(x0) exp(A(x0) / b), predicts
    E[x0 | x] + Cov(A, x0 | x) / b to first order, so C = Cov(A, x0 | x) is the way to it
    (docs/methods/tree_tilt.md). The scale is a weight without gradient, after DiffusionNFT's; but the distance is to a
    mean of leaves, which for a right prediction is its sampling error and falls with their number, so nodes with more
    leaves weigh more. Beside it xbar changes the loss's value alone.

    Args:
        v: (U, ...) the policy's velocity at (x, sigma); carries the gradient.
        x: (U, ...) latents at the node, as stored.
        sigma: number or (U,), in (0, 1].
        direction: (U, ...) C, in latent units times advantages, from `sibling_covariance`.
        centre: (U, ...) xbar, mean of the clean latents below the node.
        eps: floor of the scale, in latent units, above 0.

    Returns:
        The loss, (U,) float32, and detached metrics, (U,) float32 each: `direction`, root mean square of C;
        `prediction_error`, mean |x0hat - xbar|.

    Raises:
        ValueError: shapes differ, or `eps` is not above 0.
    """
    if not v.shape == x.shape == direction.shape == centre.shape:
        shapes = [tuple(tensor.shape) for tensor in (v, x, direction, centre)]
        raise ValueError(f"v, x, direction and centre must be of one shape (U, ...). Got {shapes}.")
    if not eps > 0:
        raise ValueError(f"eps must be above 0. Got {eps}.")
    offset = x.float() - per_row(sigma, x) * v.float() - centre.float()
    error = row_mean(offset.detach().abs())
    loss = -2.0 * row_mean(direction.float() * offset) / error.clamp_min(eps)
    return loss, {"direction": row_mean(direction.float().square()).sqrt(), "prediction_error": error}


def art_loss(
    v: Tensor, v_old: Tensor, sigma: float | Tensor, direction: Tensor, step: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return DiffusionART's loss, one value a state: the clean prediction is to be one step further along a direction.

        mean (x0hat - (x0hat_old + step * G))^2,   x0hat = x - sigma * v

    DiffusionART, arXiv 2610.12572. The target is frozen: at the old policy the gradient points along G alone, and where
    an earlier update has moved the prediction, the same loss also pulls back what moved elsewhere or too far, which is
    its restoration.

    Args:
        v: (B, ...) the policy's velocity at states (x, sigma) of the rollout; carries the gradient.
        v_old: (B, ...) the velocity there of the policy that drew them.
        sigma: number or (B,), in (0, 1].
        direction: (B, ...) G of each state's prompt, from `prompt_direction`.
        step: in latent units, root mean square, above 0.

    Returns:
        The loss, (B,) float32, and detached metrics, (B,) float32 each: `moved`, root mean square of
        x0hat - x0hat_old; `target_gap`, the loss's root.

    Raises:
        ValueError: shapes differ, or `step` is not above 0.
    """
    if not v.shape == v_old.shape == direction.shape:
        shapes = [tuple(tensor.shape) for tensor in (v, v_old, direction)]
        raise ValueError(f"v, v_old and direction must be of one shape (B, ...). Got {shapes}.")
    if not step > 0:
        raise ValueError(f"step must be above 0. Got {step}.")
    move = per_row(sigma, v) * (v_old.detach().float() - v.float())
    loss = row_mean((move - step * direction.float()).square())
    return loss, {"moved": row_mean(move.detach().square()).sqrt(), "target_gap": loss.detach().sqrt()}


def optimality(advantage: Tensor, advantage_clip: float = 5.0) -> Tensor:
    """Return probability that a sample counts as good, linear in its clipped advantage.

        r = clip(clip(A, -c, c) / (2 c) + 0.5, 0, 1)

    DiffusionNFT, arXiv 2509.16117, its optimality probability, scaled as in the published code.

    Args:
        advantage: (S,) or any shape.
        advantage_clip: c, above 0.

    Returns:
        float32 in [0, 1], of the same shape: 0.5 where A is 0, NaN where A is.

    Raises:
        ValueError: `advantage_clip` is not above 0.
    """
    if not advantage_clip > 0:
        raise ValueError(f"advantage_clip must be above 0. Got {advantage_clip}.")
    return (advantage.float() / (2.0 * advantage_clip) + 0.5).clamp(0.0, 1.0)


def _ratio_metrics(log_ratio: Tensor, removed: Tensor) -> dict[str, Tensor]:
    deviation = torch.expm1(log_ratio)  # rho - 1, without the cancellation that would drown k3 near rho = 1
    return {
        "ratio": log_ratio.exp(),
        "ratio_error": deviation.abs(),
        "clipped": removed.float(),
        "approx_kl": (deviation - log_ratio).clamp_min(0.0),
    }
