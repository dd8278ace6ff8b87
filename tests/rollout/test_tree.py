"""Forests: their order, their parts and their addresses, against loops over paths."""

import math

import pytest
import torch

from diffrl.records import Prompt, PromptBatch
from diffrl.rollout.address import Address
from diffrl.rollout.tree import chains, plan_forest, root_addresses, sample_paths, subset
from tests.rollout.oracle import Case, node_keys

BRANCHINGS = [{}, {3: 1}, {0: 2}, {0: 2, 3: 3}, {5: 3, 2: 1, 1: 2}, {0: 1, 1: 5, 2: 1, 4: 2}]


@pytest.mark.parametrize("branching", BRANCHINGS, ids=str)
def test_every_path_of_every_prompt_once_and_side_by_side(branching):
    forest, case = plan_forest(3, 2, branching), Case(branching)
    keys = node_keys(forest)
    assert [keys[leaf] for leaf in forest.leaf] == case.sample_keys()
    prefixes = {(p, r, path[:n]) for p, r, path in case.sample_keys() for n in range(len(path) + 1)}
    assert len(keys) == len(set(keys)) and set(keys) == prefixes
    assert len(forest) == 6 * math.prod(branching.values())
    assert forest.branching == branching and list(forest.branching) == sorted(branching)
    assert forest.sample_prompt.tolist() == [p for p, _, _ in case.sample_keys()]
    assert forest.sample_root.tolist() == [r for _, r, _ in case.sample_keys()]


def check_order(forest):
    """What denoising relies on."""
    steps = sorted(forest.branching)
    for node, (parent, step) in enumerate(zip(forest.parent.tolist(), forest.step.tolist(), strict=True)):
        assert parent < node
        if parent < 0:
            assert step == -1 and forest.child[node] == 0
            continue
        assert steps.index(step) == (0 if forest.parent[parent] < 0 else steps.index(int(forest.step[parent])) + 1)
        assert 0 <= int(forest.child[node]) < forest.branching[step]
        assert forest.prompt[parent] == forest.prompt[node] and forest.root[parent] == forest.root[node]
    assert forest.step.tolist() == sorted(forest.step.tolist())
    assert forest.leaf.tolist() == sorted(forest.leaf.tolist())
    for step in steps:  # siblings side by side, in the order of their parents
        parents = forest.parent[forest.step == step].tolist()
        assert parents == sorted(parents)


@pytest.mark.parametrize("branching", BRANCHINGS, ids=str)
def test_parents_come_first_and_steps_ascend(branching):
    forest = plan_forest(3, 2, branching)
    check_order(forest)
    for step, children in branching.items():
        parents = forest.parent[forest.step == step]
        assert set(torch.bincount(parents)[parents.unique()].tolist()) == {children}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("branching", BRANCHINGS, ids=str)
def test_a_subset_keeps_the_ancestors_and_nothing_else(branching, seed):
    forest = plan_forest(3, 2, branching)
    count = 1 + seed * (len(forest) - 1) // 4
    samples = torch.randperm(len(forest), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    part = subset(forest, samples)
    check_order(part)
    chosen = [Case(branching).sample_keys()[row] for row in samples]
    keys = node_keys(part)
    assert [keys[leaf] for leaf in part.leaf] == chosen
    assert len(keys) == len(set(keys))
    assert set(keys) == {(p, r, path[:n]) for p, r, path in chosen for n in range(len(path) + 1)}
    assert keys == [key for key in node_keys(forest) if key in set(keys)]  # in their old order
    assert part.branching == forest.branching
    for name in ("parent", "step", "child", "prompt", "root", "leaf"):
        assert getattr(part, name).dtype == torch.int64


def test_a_subset_of_a_subset():
    forest = plan_forest(3, 2, {0: 2, 3: 3})
    once = subset(forest, torch.tensor([1, 2, 8, 17, 35]))
    twice, direct = subset(once, torch.tensor([0, 3])), subset(forest, torch.tensor([1, 17]))
    for name in ("parent", "step", "child", "prompt", "root", "leaf"):
        assert torch.equal(getattr(twice, name), getattr(direct, name))


def test_root_addresses_follow_the_roots():
    batch = PromptBatch([Prompt("x")] * 3, (12, 5, 12 + 2**40), 6)
    forest = plan_forest(3, 2, {0: 2, 1: 2})
    assert root_addresses(forest, batch, 7) == [Address("train", 7, 6, g, r) for g in batch.groups for r in (0, 1)]
    part = subset(forest, torch.tensor([6, 7, 17]))  # second root of prompt 0's ..., last prompt
    assert root_addresses(part, batch, 7) == [Address("train", 7, 6, 12, 1), Address("train", 7, 6, 12 + 2**40, 0)]


def test_sample_paths_name_splits_alone():
    forest = plan_forest(1, 2, {0: 2, 1: 1, 2: 1, 4: 3})
    assert sample_paths(forest) == [(a, b) for _ in range(2) for a in range(2) for b in range(3)]
    assert sample_paths(subset(forest, torch.tensor([1, 5, 9]))) == [(0, 1), (1, 2), (1, 0)]
    assert sample_paths(plan_forest(2, 3, {1: 1, 2: 1})) == [()] * 6


def test_chains_without_noise():
    forest = chains(torch.tensor([4, 0, 0]))
    assert len(forest) == 3 and forest.sample_prompt.tolist() == [4, 0, 0] and forest.branching == {}
    assert forest.parent.tolist() == forest.step.tolist() == [-1] * 3 and forest.child.tolist() == [0] * 3
    assert sample_paths(forest) == [()] * 3
