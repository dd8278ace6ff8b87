"""How advantage and sample vary together below the nodes of a forest."""

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
    if not advantage.shape == node.shape == child.shape == x0.shape[:1]:
        shapes = [tuple(column.shape) for column in (x0, advantage, node, child)]
        raise ValueError(f"x0 must be (S, ...), and advantage, node and child (S,). Got {shapes}.")
    x, a = x0.float(), advantage.double()
    if not bool(a.isfinite().all()):
        raise ValueError("advantage must be finite for every leaf. Got NaN or inf.")
    _, sibling = torch.unique(child, return_inverse=True)
    children = int(sibling.max()) + 1 if len(a) else 0
    m, total = _sums(torch.ones_like(a), node, nodes), _sums(a, node, nodes)
    own_m, own_a = (_sums(column, sibling, children)[sibling] for column in (torch.ones_like(a), a))
    others = m[node] - own_m
    pairs = _sums(others, node, nodes)  # ordered ones, m^2 - sum of m_c^2
    weight = (others * a - (total[node] - own_a)) / pairs[node].clamp_min(1)
    wide = (-1, *[1] * (x.ndim - 1))
    centre = x.new_zeros((nodes, *x.shape[1:])).index_add_(0, node, x) / m.float().clamp_min(1).view(wide)
    spread = weight.float().view(wide) * (x - centre[node])
    return Covariance(torch.zeros_like(centre).index_add_(0, node, spread), centre)


def _sums(amount: Tensor, row: Tensor, rows: int) -> Tensor:
    return amount.new_zeros(rows).index_add_(0, row, amount)
