"""Values of a forest's nodes, from the rewards of its leaves, and rewards of the steps between them.

A forest is `parent` (N,): the row of each node's parent, -1 at roots; parents come before children, and trees of
several prompts may share the arrays. A leaf is a node that nobody names as parent. A step is known by the node in which
it ends, so what belongs to steps is (N,) too, and NaN at roots, which no step ends in.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST = -600.0
"""Least log-weight of a path: below it, weights would run out of float64 and leave nodes without any."""


def fuse(parent: Tensor, leaf_reward: Tensor, leaf_weight: Tensor | None = None) -> Tensor:
    """Return weighted mean, at every node, of what the leaves below it bring.

        fused(n) = sum_l w_l R_l / sum_l w_l,   l the leaves below n

    BranchGRPO's reward fusion, arXiv 2509.06040. Sums are float64, so the value of leaves that are all equal is exactly
    theirs, and a node with one child has exactly the child's value.

    Args:
        parent: (N,) int64.
        leaf_reward: (N,) of leaves, in any unit; NaN at inner nodes, and at leaves whose scoring failed, which enter
            nothing.
        leaf_weight: (N,) positive at leaves, with any meaning elsewhere; None means that all weigh the same.

    Returns:
        (N,) float32 in the unit of the rewards; at leaves their own; NaN where no leaf below has a finite reward.

    Raises:
        ValueError: shapes differ, `parent` is no forest in order, an inner node has a reward, or a leaf's weight is not
            positive and finite.
    """
    check_forest(parent, leaf_reward=leaf_reward, leaf_weight=leaf_weight)
    leaf = leaf_mask(parent)
    scored = leaf_reward.isfinite()
    if bool((scored & ~leaf).any()):
        raise ValueError(f"leaf_reward must be NaN at inner nodes. Got numbers at {_rows(scored & ~leaf)}.")
    weight = torch.ones_like(leaf_reward, dtype=torch.float64) if leaf_weight is None else leaf_weight.double()
    bad = leaf & ~((weight > 0) & weight.isfinite())
    if bool(bad.any()):
        raise ValueError(f"leaf_weight must be positive and finite at leaves. Got others at {_rows(bad)}.")
    weight = weight.where(scored, 0.0)
    reward = leaf_reward.double().where(scored, 0.0)
    return (sum_below(parent, weight * reward) / sum_below(parent, weight)).float()


def path_weights(parent: Tensor, log_prob: Tensor, beta: float) -> Tensor:
    """Return weights for `fuse` that make likely paths count for more.

        w_l proportional to exp(beta * log p(l | root)),   log p(l | n) = sum of log_prob over the steps from n to l

    One weight a leaf serves all nodes: below n the part of the path above n is common, and cancels in the softmax over
    l of beta * log p(l | n). BranchGRPO, arXiv 2509.06040; densities are averaged over the latent's dimensions, since
    sums over them would let a single leaf take all the weight.

    Args:
        parent: (N,) int64.
        log_prob: (N,) density of the step that ends in each node, averaged over latent dimensions; ignored at roots.
        beta: inverse temperature, at least 0; 0 weighs all leaves the same.

    Returns:
        (N,) float64, 1 at each tree's most likely leaf and less at its others, 0 at inner nodes. Weights below e^-600
        are raised to it.

    Raises:
        ValueError: shapes differ, `parent` is no forest in order, a log_prob is not finite, or beta is not finite or
            below 0.
    """
    check_forest(parent, log_prob=log_prob)
    if not 0 <= beta < torch.inf:
        raise ValueError(f"beta must be finite and at least 0. Got {beta}.")
    path = log_prob.double().where(parent >= 0, 0.0)
    if not bool(path.isfinite().all()):
        raise ValueError(f"log_prob must be finite for every step. Got others at {_rows(~path.isfinite())}.")
    for nodes in levels(parent)[1:]:
        path[nodes] += path[parent[nodes]]
    leaf, tree = leaf_mask(parent), root_of(parent)
    highest = torch.full_like(path, -torch.inf).scatter_reduce(0, tree[leaf], path[leaf], "amax")
    return (beta * (path - highest[tree])).clamp_min(_LOWEST).exp().where(leaf, 0.0)


def step_rewards(values: Tensor, parent: Tensor) -> Tensor:
    """Return what each step adds to the value of the node that it leaves.

        r_c = V(c) - V(parent(c))

    TP-GRPO, arXiv 2602.06422. They telescope: along a path they add up to V(leaf) - V(root).

    Args:
        values: (N,) in any unit, NaN where unknown.
        parent: (N,) int64.

    Returns:
        (N,) float32, NaN at roots and where either value is.

    Raises:
        ValueError: shapes differ, or `parent` is no forest in order.
    """
    check_forest(parent, values=values)
    exact = values.double()
    return (exact - exact[parent.clamp_min(0)]).where(parent >= 0, torch.nan).float()


def leaf_mask(parent: Tensor) -> Tensor:
    """Return (N,) bool, True for nodes that nobody names as parent."""
    leaf = torch.ones_like(parent, dtype=torch.bool)
    leaf[parent[parent >= 0]] = False
    return leaf


def levels(parent: Tensor) -> list[Tensor]:
    """Return rows of each depth: the roots', those of their children, and so on; int64, ascending."""
    depth = torch.zeros_like(parent)
    ancestor = parent
    while bool((ancestor >= 0).any()):
        depth += ancestor >= 0
        ancestor = _parent_of(parent, ancestor)
    return [torch.nonzero(depth == i).flatten() for i in range(int(depth.max()) + 1 if len(depth) else 0)]


def root_of(parent: Tensor) -> Tensor:
    """Return (N,) int64 row of the root of each node's tree."""
    root = torch.arange(len(parent), device=parent.device)
    while bool((parent[root] >= 0).any()):
        root = torch.where(parent[root] >= 0, parent[root], root)
    return root


def sum_below(parent: Tensor, amount: Tensor) -> Tensor:
    """Return (N,) float64 sum of `amount` (N,) over each node and all nodes below it."""
    total = amount.double().clone()
    for nodes in reversed(levels(parent)[1:]):
        total.index_add_(0, parent[nodes], total[nodes])
    return total


def paths(parent: Tensor, leaves: Tensor) -> tuple[Tensor, Tensor]:
    """Return every step of the paths to some leaves, once for each of the leaves that it leads to.

    Args:
        parent: (N,) int64.
        leaves: (L,) int64 rows, ascending.

    Returns:
        Pairs (leaf, node) (M,) int64, in ascending order of the node and then of the leaf; roots are no steps.
    """
    pairs, ends, nodes = [torch.stack([leaves[:0], leaves[:0]])], leaves, leaves
    while len(nodes := nodes[(inside := parent[nodes] >= 0)]):
        ends = ends[inside]
        pairs.append(torch.stack([ends, nodes]))
        nodes = parent[nodes]
    leaf, node = torch.cat(pairs, dim=1)
    order = torch.argsort(node * len(parent) + leaf)
    return leaf[order], node[order]


def check_forest(parent: Tensor, **columns: Tensor | None) -> None:
    """Refuse what is no forest, or node arrays of another length.

    Raises:
        ValueError: `parent` is not (N,) integers, a parent does not come before its child, or a column is not (N,).
    """
    if parent.ndim != 1 or parent.is_floating_point() or parent.dtype == torch.bool:
        raise ValueError(f"parent must be (N,) integers. Got {tuple(parent.shape)} {parent.dtype}.")
    for name, column in columns.items():
        if column is not None and column.shape != parent.shape:
            raise ValueError(f"{name} must be (N,) like parent, {tuple(parent.shape)}. Got {tuple(column.shape)}.")
    wrong = (parent >= torch.arange(len(parent), device=parent.device)) | (parent < -1)
    if bool(wrong.any()):
        raise ValueError(f"Every parent must be an earlier row, or -1 at a root. Got others at {_rows(wrong)}.")


def _parent_of(parent: Tensor, nodes: Tensor) -> Tensor:
    return torch.where(nodes >= 0, parent[nodes.clamp_min(0)], nodes)


def _rows(mask: Tensor) -> str:
    rows = torch.nonzero(mask).flatten().tolist()
    return f"rows {rows[:5]}{' and others' if len(rows) > 5 else ''}"
