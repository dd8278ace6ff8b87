"""Which samples to draw, as a forest: whole, or only the paths to some of its samples.

A forest's nodes are initial noises and ends of stochastic steps. Chains are the forest in which nothing splits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from diffrl.records import Forest, PromptBatch
from diffrl.rollout.address import Address

SHARED = -1
"""Child index in the address of the noise that siblings share."""


def plan_forest(prompts: int, roots: int, branching: Mapping[int, int]) -> Forest:
    """Return every tree of every prompt, whole.

    Args:
        prompts: P.
        roots: initial noises of each prompt.
        branching: stochastic step -> children of each node there, at least 1.

    Returns:
        A forest with S = P * roots * (product of the children) samples; samples of a prompt lie side by side.
    """
    steps = sorted(branching)
    prompt = torch.arange(prompts).repeat_interleave(roots)
    root = torch.arange(roots).repeat(prompts)
    first, rows = 0, torch.arange(prompts * roots)  # of the level at hand: its first node, and the tree of each node
    columns = [(torch.full_like(rows, -1), torch.full_like(rows, -1), torch.zeros_like(rows), rows)]
    for step in steps:
        children, width = branching[step], len(rows)
        parent = first + torch.arange(width).repeat_interleave(children)
        first, rows = first + width, rows.repeat_interleave(children)
        columns.append((parent, torch.full_like(rows, step), torch.arange(children).repeat(width), rows))
    parent, step_of, child, tree = (torch.cat(column) for column in zip(*columns, strict=True))
    leaf = first + torch.arange(len(rows))
    return Forest(
        parent=parent,
        step=step_of,
        child=child,
        prompt=prompt[tree],
        root=root[tree],
        leaf=leaf,
        branching={step: branching[step] for step in steps},
    )


def chains(prompt: Tensor) -> Forest:
    """Return one deterministic chain per sample.

    Args:
        prompt: (S,) int64 row of each sample's prompt.
    """
    none, index = torch.full_like(prompt, -1), torch.arange(len(prompt))
    return Forest(
        parent=none, step=none, child=torch.zeros_like(none), prompt=prompt, root=index, leaf=index, branching={}
    )


def paths_to(forest: Forest, samples: Tensor) -> Tensor:
    """Return (N,) bool, the nodes on the paths to some samples.

    Args:
        forest: any.
        samples: (K,) int64 rows of its samples.
    """
    kept = torch.zeros(len(forest.parent), dtype=torch.bool)
    nodes = forest.leaf[samples]
    while len(nodes):
        kept[nodes] = True
        nodes = forest.parent[nodes]
        nodes = nodes[nodes >= 0].unique()
    return kept


def subset(forest: Forest, samples: Tensor) -> Forest:
    """Return the paths to some samples: their nodes alone, under the same addresses and so with the same noise.

    Args:
        forest: any.
        samples: (K,) int64 rows of its samples, ascending.
    """
    kept = paths_to(forest, samples)
    renumbered = kept.cumsum(0) - 1
    parent = forest.parent[kept]
    parent = torch.where(parent < 0, parent, renumbered[parent.clamp_min(0)])
    columns = (forest.step[kept], forest.child[kept], forest.prompt[kept], forest.root[kept])
    return Forest(parent, *columns, renumbered[forest.leaf[samples]], forest.branching)


def prompt_chunks(forest: Forest, at_once: int | None) -> list[Tensor]:
    """Return rows of the samples of every few prompts.

    Args:
        forest: any.
        at_once: prompts of each part; None = all.
    """
    prompt = forest.sample_prompt
    rows = prompt.unique()
    return [torch.nonzero(torch.isin(prompt, part)).flatten() for part in rows.split(at_once or max(len(rows), 1))]


def root_addresses(forest: Forest, batch: PromptBatch, seed: int) -> list[Address]:
    """Return addresses of the forest's initial noises, in the order of its roots."""
    rows = torch.nonzero(forest.parent < 0).flatten()
    return [
        Address("train", seed, batch.iteration, batch.groups[p], r)
        for p, r in zip(forest.prompt[rows].tolist(), forest.root[rows].tolist(), strict=True)
    ]


def sample_paths(forest: Forest) -> list[tuple[int, ...]]:
    """Return the child taken at each split on the way to each sample; () for chains."""
    paths: list[tuple[int, ...]] = []
    for parent, step, child in zip(forest.parent.tolist(), forest.step.tolist(), forest.child.tolist(), strict=True):
        before = paths[parent] if parent >= 0 else ()
        paths.append((*before, child) if forest.branching.get(step, 1) > 1 else before)
    return [paths[node] for node in forest.leaf.tolist()]
