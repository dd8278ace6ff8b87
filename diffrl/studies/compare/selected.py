"""What a selection takes of a pool on average, where a plan knows only the most that it could take.

A prompt's chosen leaves share prefixes, and how many depends on the rewards. So selections are tried on rewards that
are drawn at random, down the tree: each node adds a normal number of its own, as each split adds noise of its own.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor

from diffrl.config import Config
from diffrl.cost.plan import PromptCost, prompt_cost
from diffrl.functional.tree_counts import trained_nodes
from diffrl.records import Forest
from diffrl.rollout.select import select
from diffrl.rollout.tree import plan_forest, subset

TRIES = 100
"""Selections that an average is of. The mean of a count lies within a tenth of its standard deviation."""


def average_cost(config: Config, iteration: int) -> PromptCost:
    """Return what one prompt costs in a training iteration on average, to whole evaluations."""
    most, r = prompt_cost(config, iteration), config.rollout
    if r.explore is None or not r.tree.splits:
        return most
    generator = torch.Generator().manual_seed(0)
    pool = plan_forest(1, r.trees, r.branching_at(iteration))
    taken = []
    for _ in range(TRIES):
        order = torch.randperm(len(pool), generator=generator)
        rewards = _random_rewards(pool, generator)
        chosen = select(r.explore.select, rewards, r.explore.keep, order, pool.parent, pool.leaf).indices.tolist()
        audited = [row for row in order.tolist() if row not in set(chosen)][: r.explore.audit]
        taken.append(subset(pool, torch.tensor(sorted([*chosen, *audited]))))
    rollout = round(mean(_evaluations(forest, r.steps) for forest in taken))
    starts = round(mean(len(forest.parent[forest.parent >= 0].unique()) for forest in taken))
    origins = round(most.origins * starts / most.starts)
    return replace(
        most,
        rollout=rollout,
        values=round(most.values * starts / most.starts),
        starts=starts,
        inner=starts if most.inner else 0,
        origins=origins,
        trained=trained_nodes(config.objective.nodes_kept, origins),
    )


def _random_rewards(forest: Forest, generator: torch.Generator) -> Tensor:
    rewards = torch.randn(len(forest.parent), generator=generator)
    for node, parent in enumerate(forest.parent.tolist()):
        if parent >= 0:
            rewards[node] += rewards[parent]
    return rewards[forest.leaf]


def _evaluations(forest: Forest, steps: int) -> int:
    """Return the network evaluations that draw a forest: each node goes on to the next stochastic step, or the end."""
    ordered = [-1, *sorted(forest.branching), steps - 1]
    following = dict(zip(ordered, ordered[1:], strict=False))
    return sum(following[step] - step for step in forest.step.tolist())
