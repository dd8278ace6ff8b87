"""The choice: which candidates of each prompt are worth drawing again, and which are drawn as a check."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from diffrl.functional.selection import (
    Selection,
    best_worst,
    max_variance,
    random_choice,
    select_all,
    sibling_contrast,
)
from diffrl.records import Chosen, Exploration
from diffrl.rollout.address import Purpose
from diffrl.rollout.explore import prompt_samples
from diffrl.rollout.noise import generator_at

Method = Literal["best_worst", "max_variance", "sibling_contrast", "random", "all"]


def choose(exploration: Exploration, method: Method, keep: int, audit: int, seed: int) -> Chosen:
    """Choose among each prompt's candidates by their proxy rewards.

    Random choices are keyed by (seed, iteration, group), so they do not depend on ranks.

    Args:
        exploration: candidates and proxy rewards.
        method: how.
        keep: of each prompt, to train on.
        audit: of each prompt, drawn at random from the others to check the ranking; fewer if fewer are left.
        seed: of the run.
    """
    batch, forest = exploration.batch, exploration.forest
    samples: list[int] = []
    reasons: list[str] = []
    audited: list[bool] = []
    for group, rows in zip(batch.groups, prompt_samples(forest), strict=True):
        generator = generator_at(seed, batch.iteration, group, Purpose.CANDIDATES)
        order = torch.from_numpy(generator.permutation(len(rows)))
        selection = _select(method, exploration.proxy.total[rows], keep, order, forest.parent, forest.leaf[rows])
        reason = dict(zip(selection.indices.tolist(), selection.reason, strict=True))
        others = [row for row in order.tolist() if row not in reason][:audit]
        for row in sorted([*reason, *others]):
            samples.append(int(rows[row]))
            reasons.append(reason.get(row, "audit"))
            audited.append(row not in reason)
    return Chosen(torch.tensor(samples, dtype=torch.int64), reasons, torch.tensor(audited, dtype=torch.bool))


def _select(method: Method, proxy: Tensor, keep: int, order: Tensor, parent: Tensor, leaf: Tensor) -> Selection:
    if method == "best_worst":
        return best_worst(proxy, keep)
    if method == "max_variance":
        return max_variance(proxy, keep)
    if method == "sibling_contrast":
        return sibling_contrast(proxy, keep, parent, leaf)
    if method == "random":
        return random_choice(proxy, keep, order)
    return select_all(proxy)
