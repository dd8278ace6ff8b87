"""The choice: which candidates of each prompt are worth drawing again, and which are drawn as a check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.functional.selection import (
    Selection,
    best_worst,
    family_contrast,
    max_variance,
    random_choice,
    select_all,
    sibling_contrast,
)
from diffrl.records import Chosen, Exploration
from diffrl.registry import SELECTIONS, own_code, resolve
from diffrl.rollout.address import Purpose
from diffrl.rollout.explore import prompt_samples
from diffrl.rollout.noise import generator_at
from reward_models.common.messages import show


def choose(exploration: Exploration, method: str, keep: int, audit: int, seed: int) -> Chosen:
    """Choose among each prompt's candidates by their proxy rewards.

    Random choices are keyed by (seed, iteration, group), so they do not depend on ranks.

    Args:
        exploration: candidates and proxy rewards.
        method: how: a name of `registry.SELECTIONS`, or "module:function" of the user's own, which is asked for each
            prompt: see `own_selection`.
        keep: of each prompt, to train on.
        audit: of each prompt, drawn at random from the others to check the ranking; fewer if fewer are left.
        seed: of the run.

    Raises:
        DiffrlError: a function of the user's own chooses what cannot be drawn.
    """
    batch, forest = exploration.batch, exploration.forest
    samples: list[int] = []
    reasons: list[str] = []
    audited: list[bool] = []
    for group, rows in zip(batch.groups, prompt_samples(forest), strict=True):
        generator = generator_at(seed, batch.iteration, group, Purpose.CANDIDATES)
        order = torch.from_numpy(generator.permutation(len(rows)))
        selection = select(
            method=method,
            rewards=exploration.proxy.total[rows],
            keep=keep,
            order=order,
            parent=forest.parent,
            leaf=forest.leaf[rows],
        )
        reason = dict(zip(selection.indices.tolist(), selection.reason, strict=True))
        others = [row for row in order.tolist() if row not in reason][:audit]
        for row in sorted([*reason, *others]):
            samples.append(int(rows[row]))
            reasons.append(reason.get(row, "audit"))
            audited.append(row not in reason)
    return Chosen(torch.tensor(samples, dtype=torch.int64), reasons, torch.tensor(audited, dtype=torch.bool))


def select(method: str, rewards: Tensor, keep: int, order: Tensor, parent: Tensor, leaf: Tensor) -> Selection:
    """Choose among one prompt's candidates.

    Args:
        method: as in `choose`.
        rewards: (N,) of the candidates.
        keep: K, in [1, N].
        order: (N,) int64 permutation of the candidates, for random choices.
        parent: (M,) int64, the node above each node of the forest; other prompts' may be among them.
        leaf: (N,) int64, the node of each candidate.

    Raises:
        DiffrlError: a function of the user's own chooses what cannot be drawn.
    """
    if method == "best_worst":
        return best_worst(rewards, keep)
    if method == "max_variance":
        return max_variance(rewards, keep)
    if method == "sibling_contrast":
        return sibling_contrast(rewards, keep, parent, leaf)
    if method == "family_contrast":
        return family_contrast(rewards, keep, parent, leaf)
    if method == "random":
        return random_choice(rewards, keep, order)
    if method == "all":
        return select_all(rewards)
    return own_selection(method, rewards, keep, *_own_nodes(parent, leaf))


def _own_nodes(parent: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
    """Return parent and leaf of the nodes at and above some leaves alone, numbered anew in the same order."""
    nodes = above = leaf
    while len(above := parent[above][parent[above] >= 0].unique()):
        nodes = torch.cat([nodes, above])
    nodes = nodes.unique()
    parent = parent[nodes]
    return torch.where(parent < 0, parent, torch.searchsorted(nodes, parent)), torch.searchsorted(nodes, leaf)


def own_selection(name: str, rewards: Tensor, keep: int, parent: Tensor, leaf: Tensor) -> Selection:
    """Return what a function of the user's own chooses, held against the rules of a choice.

    Args:
        name: "module:function"; it is called with a copy of the rewards, and `keep`; with `parent` and `leaf` too if it
            has arguments of both names.
        rewards: (N,) float32 proxy rewards of one prompt's candidates, NaN where scoring failed.
        keep: K, how many are to be chosen.
        parent: (M,) int64, the node above each node of this prompt's trees; -1 at roots, else below its own index.
        leaf: (N,) int64, the node of each candidate.

    Returns:
        What it chose; where it gave indices alone, its own name is the reason.

    Raises:
        DiffrlError: it raised, or did not give K different indices in [0, N), or not as many reasons.
    """
    choice = resolve("rollout.explore.select", SELECTIONS, name)
    with own_code(f"The selection {name}"):
        answer: Any = choice(rewards.clone(), keep, **_tree_arguments(choice, parent, leaf))
        indices = answer.indices if isinstance(answer, Selection) else answer
        chosen = _whole_numbers(indices)
    if chosen is None:
        raise DiffrlError(
            f"The selection {name} must return the indices of candidates, (keep,) whole numbers. Got "
            f"{type(answer).__name__}{_shape(indices)}. Return a list, or a tensor of int64."
        )
    if len(chosen) != keep or len(set(chosen)) != keep or not all(0 <= i < len(rewards) for i in chosen):
        raise DiffrlError(
            f"The selection {name} must return {keep} different indices from 0 to {len(rewards) - 1}. Got "
            f"{len(chosen)}, {len(set(chosen))} of them different: {show(chosen)}. Mend it; it is called with "
            "(rewards, keep), and keep may grow with rollout.explore.fidelity."
        )
    reason: Any = answer.reason if isinstance(answer, Selection) else (name.partition(":")[2],) * keep
    if not isinstance(reason, list | tuple) or len(reason) != keep or not all(isinstance(why, str) for why in reason):
        raise DiffrlError(
            f"The selection {name} must return {keep} short texts, why each was chosen. Got {show(reason)}. Mend it."
        )
    return Selection(torch.tensor(chosen, dtype=torch.int64), tuple(reason))


def _tree_arguments(choice: Callable[..., Any], parent: Tensor, leaf: Tensor) -> dict[str, Tensor]:
    try:
        names = inspect.signature(choice).parameters
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return {}
    return {"parent": parent.clone(), "leaf": leaf.clone()} if {"parent", "leaf"} <= names.keys() else {}


def _whole_numbers(indices: Any) -> list[int] | None:
    """Return indices in whatever sequence they come; None if they are none."""
    values: Any = indices.tolist() if hasattr(indices, "tolist") else indices
    if not isinstance(values, Sequence) or not all(type(value) is int for value in values):
        return None
    return list(values)


def _shape(indices: Any) -> str:
    return f" of {indices.dtype} {tuple(indices.shape)}" if isinstance(indices, Tensor) else ""
