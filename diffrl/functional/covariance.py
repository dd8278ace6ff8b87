"""How advantage and sample vary together below the nodes of a forest, and advantage between their children."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Covariance(NamedTuple):
    """Below each of U nodes.

    Args:
        direction: (U, ...) float32 covariance of advantage and clean latents; 0 without leaves of two children.
        centre: (U, ...) float32 mean of the clean latents; 0 without leaves.
    """

    direction: Tensor
    centre: Tensor


def sibling_covariance(x0: Tensor, advantage: Tensor, node: Tensor, child: Tensor, nodes: int) -> Covariance:
    """Return covariance of advantage and sample below each node, from leaves of different children.

        C_n = sum over pairs (l, l') below different children of n of (A_l - A_l') (x0_l - x0_l') / 2, over their number

    Leaves below one child share a part of their path, so the covariance of all leaves is too small by what children
    differ in; leaves below different children are independent draws from p(x0 | x_n), and every such pair is an
    unbiased estimate of Cov(A, x0 | x_n) (Hoeffding 1948: a U-statistic). With one leaf a child, this is the usual
    covariance with m - 1. Written as a sum over leaves, each is compared with the leaves of the *other* children:

        C_n = sum over l of (m - m_c) (A_l - Abar_{not c}) (x0_l - xbar) / (m^2 - sum over c of m_c^2)

    with m leaves below n, m_c of them below the leaf's child c. Weights are float64, so leaves of equal advantage give
    exactly 0.

    Args:
        x0: (S, ...) clean latents.
        advantage: (S,), finite.
        node: (S,) int64 row in [0, U) of the node above each leaf.
        child: (S,) int64 id of that node's child on the way to the leaf; ids of different nodes' children differ.
        nodes: U.

    Raises:
        ValueError: the columns are not all (S,), or an advantage is not finite.
    """
    _check_leaves(advantage, node, child, x0)
    x, a = x0.float(), advantage.double()
    sibling, children = _siblings(child)
    m, total = _sums(torch.ones_like(a), node, nodes), _sums(a, node, nodes)
    own_m, own_a = (_sums(column, sibling, children)[sibling] for column in (torch.ones_like(a), a))
    others = m[node] - own_m
    pairs = _sums(others, node, nodes)  # ordered ones, m^2 - sum of m_c^2
    weight = (others * a - (total[node] - own_a)) / pairs[node].clamp_min(1)
    wide = (-1, *[1] * (x.ndim - 1))
    centre = x.new_zeros((nodes, *x.shape[1:])).index_add_(0, node, x) / m.float().clamp_min(1).view(wide)
    spread = weight.float().view(wide) * (x - centre[node])
    return Covariance(torch.zeros_like(centre).index_add_(0, node, spread), centre)


def prompt_direction(x0: Tensor, reward: Tensor, prompt: Tensor, prompts: int) -> Tensor:
    """Return the covariance of reward and clean latents over each prompt's independent samples, at root mean square 1.

        G(c) = Cov(R, x0 | c) / rms Cov(R, x0 | c)

    DiffusionART, arXiv 2610.12572. A positive factor of a prompt's rewards, or anything added to them, leaves it as it
    is: their scale by the median absolute deviation in the published code, and standardised advantages too. Of two
    samples it is the better one's difference from the other, so that a preference says as much as two rewards.

    Args:
        x0: (S, ...) clean latents.
        reward: (S,), finite.
        prompt: (S,) int64 row in [0, P) of each sample's prompt.
        prompts: P.

    Returns:
        (P, ...) float32; 0 of prompts whose rewards are all equal.
    """
    covariance = sibling_covariance(x0, reward, prompt, torch.arange(len(x0), device=x0.device), prompts).direction
    size = covariance.flatten(1).square().mean(dim=1).sqrt()
    return covariance / torch.where(size > 0, size, 1).view(-1, *[1] * (covariance.ndim - 1))


def between_variance(advantage: Tensor, node: Tensor, child: Tensor, nodes: int) -> Tensor:
    """Return how far the values of each node's children differ beyond what the spread below them explains.

        contrast_n = max(0, (MSB - MSW) / m0),   m0 = (m - sum over c of m_c^2 / m) / (k - 1)
        MSB = sum over c of m_c (Abar_c - Abar)^2 / (k - 1)
        MSW = sum over c, l below c of (A_l - Abar_c)^2 / (m - k), 0 where every child has one leaf

    with m leaves below n and m_c below each of its k children, whose value is the mean Abar_c of their leaves: what
    `tree_values.fuse` gives with equal weights. It is the estimator of the variance between groups in a one-way layout
    with random effects: unbiased before it is cut at 0, for uneven widths too (Searle, Casella and McCulloch 1992,
    Variance Components, chapter 3). It is above 0 where F = MSB / MSW is above 1, and unlike F it has a value where the
    children are leaves, whose MSW is 0: then it is their variance.

    Args:
        advantage: (S,), finite.
        node: (S,) int64 row in [0, U) of the node above each leaf.
        child: (S,) int64 id of that node's child on the way to the leaf; ids of different nodes' children differ.
        nodes: U.

    Returns:
        (U,) float64 in squared units of the advantage, 0 of nodes without leaves of two children.

    Raises:
        ValueError: the columns are not all (S,), or an advantage is not finite.
    """
    _check_leaves(advantage, node, child)
    a, (sibling, children) = advantage.double(), _siblings(child)
    above = node.new_zeros(children).scatter(0, sibling, node)
    m, width = (_sums(torch.ones_like(a), row, rows) for row, rows in ((node, nodes), (sibling, children)))
    k = _sums(torch.ones_like(width), above, nodes)
    value, mean = _sums(a, sibling, children) / width, _sums(a, node, nodes) / m.clamp_min(1)
    between = _sums(width * (value - mean[above]).square(), above, nodes) / (k - 1)
    within = _sums((a - value[sibling]).square(), node, nodes) / (m - k).clamp_min(1)
    size = (m - _sums(width.square(), above, nodes) / m) / (k - 1)
    return ((between - within) / size).clamp_min(0).where(k > 1, 0)


def _check_leaves(advantage: Tensor, node: Tensor, child: Tensor, *columns: Tensor) -> None:
    if not all(column.shape[:1] == advantage.shape for column in columns) or not (
        advantage.ndim == 1 and advantage.shape == node.shape == child.shape
    ):
        shapes = [tuple(column.shape) for column in (*columns, advantage, node, child)]
        raise ValueError(f"x0 must be (S, ...), and advantage, node and child (S,). Got {shapes}.")
    if not bool(advantage.isfinite().all()):
        raise ValueError("advantage must be finite for every leaf. Got NaN or inf.")


def _siblings(child: Tensor) -> tuple[Tensor, int]:
    """Return children numbered from 0 without gaps, (S,) int64, and how many there are."""
    ids, sibling = torch.unique(child, return_inverse=True)
    return sibling, len(ids)


def _sums(amount: Tensor, row: Tensor, rows: int) -> Tensor:
    return amount.new_zeros(rows).index_add_(0, row, amount)
