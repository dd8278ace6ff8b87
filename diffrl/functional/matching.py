"""Losses on noised samples that weigh how well a velocity matches: AWM, DGPO and CRD, one value a row.

    x = (1 - sigma) * x0 + sigma * eps,   target = eps - x0,   d = mean (v - target)^2

DiffusionNFT's loss stands in `losses`. What a row has to know of its whole group is an argument, made by `group_mean`
or `group_weight`, so that a caller may split rows into micro-batches as with the other losses.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from diffrl.functional.dynamics import per_row
from diffrl.functional.gaussian import row_mean
from diffrl.functional.losses import clipped_surrogate, velocity_kl

Weighting = Literal["uniform", "sigma", "sigma_squared", "huber", "ghuber", "normalised"]

Metrics = dict[str, Tensor]


def matching_log_prob(
    v: Tensor, target: Tensor, sigma: float | Tensor, weighting: Weighting, power: float = 0.25, eps: float = 1e-5
) -> Tensor:
    """Return what AWM puts in the place of a log-probability: the matching error, weighted and negative.

        uniform        -d                              huber    -sigma * (sqrt(d + 1e-10) - 1e-5)
        sigma          -sigma * d                      ghuber   -sigma * ((d + 1e-10)^p - 1e-10^p) / p
        sigma_squared  -sigma^2 * d                    normalised   -sigma^2 * d / max(sigma * mean |v - target|, eps)

    AWM, arXiv 2509.25050; the forms are those of its SD3.5 code, but `normalised`, which is DiffusionNFT's
    (arXiv 2509.16117): its denominator is a weight and carries no gradient.

    Args:
        v: (B, ...) the policy's velocity; carries the gradient.
        target: (B, ...) eps - x0.
        sigma: number or (B,), in (0, 1].
        weighting: one of the above.
        power: p of ghuber, above 0; huber is p = 1/2 up to a factor of 2.
        eps: floor of the denominator of normalised, in units of the latents, above 0.

    Returns:
        (B,) float32, at most 0.

    Raises:
        ValueError: shapes differ, `power` or `eps` is not above 0, or `weighting` is another.
    """
    _require_rows(v, target)
    if not (power > 0 and eps > 0):
        raise ValueError(f"power and eps must be above 0. Got {power} and {eps}.")
    error, level = velocity_kl(v, target), per_row(sigma, v.new_empty(len(v), dtype=torch.float32))
    if weighting == "uniform":
        return -error
    if weighting == "sigma":
        return -level * error
    if weighting == "sigma_squared":
        return -level.square() * error
    if weighting == "huber":
        return -level * ((error + 1e-10).sqrt() - 1e-5)
    if weighting == "ghuber":
        return -level * ((error + 1e-10).pow(power) - math.pow(1e-10, power)) / power
    if weighting == "normalised":
        return -level.square() * error / (level * _mean_distance(v, target)).clamp_min(eps)
    raise ValueError(f"weighting must be one of {', '.join(get_args(Weighting))}. Got {weighting!r}.")


def awm_loss(
    v: Tensor,
    v_old: Tensor,
    target: Tensor,
    sigma: float | Tensor,
    advantage: Tensor,
    weighting: Weighting,
    power: float,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Metrics]:
    """Return advantage-weighted matching, one value a row: PPO's surrogate with the matching error as log-probability.

        max(-A * rho, -A * clip(rho, 1 - clip_low, 1 + clip_high)),   rho = exp(l - l_old),   l = `matching_log_prob`

    AWM, arXiv 2509.25050. Where v = v_old its gradient is A times that of -l.

    Args:
        v: (B, ...) the policy's velocity; carries the gradient.
        v_old: (B, ...) the velocity of the policy that drew the samples.
        target: (B, ...) eps - x0.
        sigma: number or (B,), in (0, 1].
        advantage: (B,).
        weighting: of the error, see `matching_log_prob`.
        power: of ghuber.
        clip_low: how far below 1 rho counts, at least 0.
        clip_high: how far above 1 rho counts, at least 0.

    Returns:
        The loss, (B,) float32, and detached metrics, (B,) float32 each: those of `clipped_surrogate`, and
        `matching_error`, d.

    Raises:
        ValueError: as `matching_log_prob` and `clipped_surrogate`.
    """
    new = matching_log_prob(v, target, sigma, weighting, power)
    old = matching_log_prob(v_old.detach(), target, sigma, weighting, power)
    loss, metrics = clipped_surrogate(new, old, advantage, clip_low, clip_high)
    return loss, {**metrics, "matching_error": velocity_kl(v.detach(), target)}


def group_weight(
    error: Tensor, reference_error: Tensor, advantage: Tensor, cell: Tensor, counts: Tensor, beta: float
) -> Tensor:
    """Return DGPO's weight of a group: near 1 while it prefers the wrong samples, near 0 once the right ones.

        W = sigmoid(beta * sum over the group of A_i * (d_i - d_ref,i) / G)

    DGPO, arXiv 2510.08425: sigmoid(s) is the derivative of -log sigmoid(-s), its preference loss of the group.

    Args:
        error: (B,) d of the policy.
        reference_error: (B,) d of the reference policy.
        advantage: (B,).
        cell: (B,) int64 group of each row: one prompt at one noise level.
        counts: (B,) bool, False for rows that are no part of their group; G is how many are.
        beta: strength of the preference, above 0.

    Returns:
        (B,) float32 in (0, 1), without gradient, equal for all rows of a cell.

    Raises:
        ValueError: shapes differ, or `beta` is not above 0.
    """
    if not beta > 0:
        raise ValueError(f"beta must be above 0. Got {beta}.")
    gained = advantage.float() * (error.detach() - reference_error.detach()).float()
    return torch.sigmoid(beta * group_mean(gained, cell, counts))


def dgpo_loss(
    v: Tensor, v_old: Tensor, target: Tensor, advantage: Tensor, weight: Tensor, clip: float | None
) -> tuple[Tensor, Metrics]:
    """Return direct group preference optimisation, one value a row.

        W * A * d,   without gradient where exp(d_old - d) is above 1 + clip with A > 0, or below 1 - clip with A < 0

    DGPO, arXiv 2510.08425, with the clip of its published code. Summed over a group and divided by G, the gradient is
    that of softplus(s) / beta with the s of `group_weight`.

    Args:
        v: (B, ...) the policy's velocity; carries the gradient.
        v_old: (B, ...) the velocity of the policy that the clip holds on to.
        target: (B, ...) eps - x0.
        advantage: (B,).
        weight: (B,) W, from `group_weight`.
        clip: at least 0; None = no clip.

    Returns:
        The loss, (B,) float32, and detached metrics, (B,) float32 each: `matching_error`, d; `group_weight`, W;
        `clipped`, 1 where the clip removes the row's gradient.

    Raises:
        ValueError: shapes differ, or `clip` is negative.
    """
    _require_rows(v, v_old, target, columns=(advantage, weight))
    if clip is not None and not clip >= 0:
        raise ValueError(f"clip must be at least 0. Got {clip}.")
    error, advantage, weight = velocity_kl(v, target), advantage.float(), weight.float()
    clipped = torch.zeros_like(advantage, dtype=torch.bool)
    if clip is not None:
        ratio = (velocity_kl(v_old.detach(), target) - error.detach()).exp()
        clipped = ((advantage > 0) & (ratio > 1.0 + clip)) | ((advantage < 0) & (ratio < 1.0 - clip))
    loss = weight * advantage * torch.where(clipped, error.detach(), error)
    return loss, {"matching_error": error.detach(), "group_weight": weight, "clipped": clipped.float()}


def implicit_reward(v: Tensor, v_old: Tensor, target: Tensor, eps: float = 1e-5) -> Tensor:
    """Return CRD's reward that a policy implies: by how much better than the old one it matches a sample.

        q = -(d / max(mean |v - target|, eps) - d_old / max(mean |v_old - target|, eps))

    CRD, arXiv 2603.14128, with the self-normalised weights of the code; they carry no gradient, nor does v_old.

    Args:
        v: (B, ...) the policy's velocity; carries the gradient.
        v_old: (B, ...) the old policy's.
        target: (B, ...) eps - x0.
        eps: floor of the denominators, in units of the latents, above 0.

    Returns:
        (B,) float32; exactly 0 where v = v_old.

    Raises:
        ValueError: shapes differ, or `eps` is not above 0.
    """
    _require_rows(v, v_old, target)
    if not eps > 0:
        raise ValueError(f"eps must be above 0. Got {eps}.")

    def matching(velocity: Tensor) -> Tensor:
        return velocity_kl(velocity, target) / _mean_distance(velocity, target).clamp_min(eps)

    return matching(v_old.detach()) - matching(v)


def crd_loss(
    implicit: Tensor,
    implicit_mean: Tensor,
    reward: Tensor,
    reward_mean: Tensor,
    beta: float,
    advantage_clip: float = 5.0,
) -> tuple[Tensor, Metrics]:
    """Distil centred rewards, one value a row: implied rewards are to differ within a group as the true ones do.

        advantage_clip * (beta * (q - qbar) - (R - Rbar))^2 / beta

    CRD, arXiv 2603.14128, with the factor of the code. qbar carries no gradient; with uniform means that changes
    nothing in a group's sum, because its residuals add up to 0.

    Args:
        implicit: (B,) q, from `implicit_reward`; carries the gradient.
        implicit_mean: (B,) qbar, its mean over the row's group.
        reward: (B,) R in [0, 1], from `losses.optimality`.
        reward_mean: (B,) Rbar, its mean over the row's group.
        beta: of the KL leash under which q = R / beta is the optimum, above 0.
        advantage_clip: the bound that made R, above 0.

    Returns:
        The loss, (B,) float32, and detached metrics, (B,) float32 each: `implicit_reward`, q; `reward_gap`,
        |beta * (q - qbar) - (R - Rbar)|.

    Raises:
        ValueError: shapes differ, or `beta` or `advantage_clip` is not above 0.
    """
    if implicit.ndim != 1 or not implicit.shape == implicit_mean.shape == reward.shape == reward_mean.shape:
        shapes = [tuple(tensor.shape) for tensor in (implicit, implicit_mean, reward, reward_mean)]
        raise ValueError(f"implicit, reward and their means must all be (B,). Got {shapes}.")
    if not (beta > 0 and advantage_clip > 0):
        raise ValueError(f"beta and advantage_clip must be above 0. Got {beta} and {advantage_clip}.")
    gap = beta * (implicit - implicit_mean.detach()) - (reward.float() - reward_mean.float())
    return advantage_clip * gap.square() / beta, {
        "implicit_reward": implicit.detach(),
        "reward_gap": gap.detach().abs(),
    }


def pair_margin(error: Tensor, reference_error: Tensor, side: Tensor, cell: Tensor, beta: float) -> Tensor:
    """Return Diffusion-DPO's margin of a pair: above 0 where the policy, more than the reference, prefers its winner.

        m = -beta / 2 * ((d_w - d_ref,w) - (d_l - d_ref,l))

    Diffusion-DPO, arXiv 2311.12908, equation 14, with velocities in the place of noises; beta on the scale of its code,
    where errors are means over the dimensions of a latent.

    Args:
        error: (B,) d of the policy.
        reference_error: (B,) d of the reference policy.
        side: (B,) 1 of a winner, -1 of a loser.
        cell: (B,) int64 of each row's pair at one noise level; it has both sides.
        beta: strength, above 0.

    Returns:
        (B,) float32, without gradient, equal for both rows of a cell.
    """
    gained = side.float() * (error.detach() - reference_error.detach()).float()
    return -beta * group_mean(gained, cell, torch.ones_like(cell, dtype=torch.bool))


def dpo_loss(error: Tensor, side: Tensor, margin: Tensor, weight: Tensor, beta: float) -> Tensor:
    """Return direct preference optimisation, one value a row; the mean over both rows of a pair has DPO's gradient.

        value -w * log sigmoid(m),   gradient w * beta * sigmoid(-m) * side * grad d

    Args:
        error: (B,) d of the policy; carries the gradient.
        side: (B,) 1 of a winner, -1 of a loser.
        margin: (B,) what `pair_margin` gives at the same weights.
        weight: (B,) of the preference.
        beta: as in `pair_margin`.
    """
    slope = beta * torch.sigmoid(-margin) * side.float()
    return weight * (slope * (error - error.detach()) - torch.nn.functional.logsigmoid(margin))


def group_mean(values: Tensor, cell: Tensor, counts: Tensor) -> Tensor:
    """Return the mean over each row's group, without gradient.

    Args:
        values: (B,) numbers; those of rows that do not count may be anything.
        cell: (B,) int64 group of each row.
        counts: (B,) bool, False for rows that are no part of their group.

    Returns:
        (B,) float32, equal for all rows of a cell; 0 where none counts.

    Raises:
        ValueError: the three are not all (B,).
    """
    if values.ndim != 1 or not values.shape == cell.shape == counts.shape:
        shapes = [tuple(tensor.shape) for tensor in (values, cell, counts)]
        raise ValueError(f"values, cell and counts must all be (B,). Got {shapes}.")
    groups, index = torch.unique(cell, return_inverse=True)
    none = values.new_zeros(len(groups), dtype=torch.float32)
    total = none.index_add(0, index, torch.where(counts, values.detach().float(), 0.0))
    return (total / none.index_add(0, index, counts.float()).clamp_min(1.0))[index]


def _mean_distance(v: Tensor, target: Tensor) -> Tensor:
    """Return mean |v - target| of each row, (B,) float32, without gradient."""
    return row_mean((v.detach().float() - target.float()).abs())


def _require_rows(first: Tensor, *others: Tensor, columns: tuple[Tensor, ...] = ()) -> None:
    if any(other.shape != first.shape for other in others) or any(c.shape != first.shape[:1] for c in columns):
        shapes = [tuple(tensor.shape) for tensor in (first, *others, *columns)]
        raise ValueError(f"Velocities and targets must be of one shape (B, ...), and columns (B,). Got {shapes}.")
