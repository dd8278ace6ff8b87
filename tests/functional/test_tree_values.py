"""Values of nodes against recursion over children, and the sums that they must satisfy."""

import math
import random

import pytest
import torch

from diffrl.functional.tree_values import fuse, leaf_mask, levels, path_weights, paths, root_of, step_rewards

SEEDS = range(4)


def random_forest(seed, nodes=53):
    """Parents of a forest with ragged depths and widths, and rewards of its leaves, some of which failed."""
    draw = random.Random(seed)
    parent = [-1]
    for node in range(1, nodes):
        parent.append(-1 if draw.random() < 0.08 else draw.randrange(max(0, node - 9), node))
    leaves = [node for node in range(nodes) if node not in parent]
    reward = [math.nan] * nodes
    for leaf in leaves:
        reward[leaf] = math.nan if draw.random() < 0.2 else draw.gauss(0.3, 1.0)
    return parent, leaves, reward, draw


def leaves_below(parent, node):
    children = [child for child, above in enumerate(parent) if above == node]
    return [leaf for child in children for leaf in leaves_below(parent, child)] if children else [node]


def naive_fuse(parent, reward, weight):
    values = []
    for node in range(len(parent)):
        below = [leaf for leaf in leaves_below(parent, node) if math.isfinite(reward[leaf])]
        total = math.fsum(weight[leaf] for leaf in below)
        values.append(math.fsum(weight[leaf] * reward[leaf] for leaf in below) / total if below else math.nan)
    return values


def close(result, expected, **tolerance):
    torch.testing.assert_close(
        result, torch.tensor(expected), **{"rtol": 1e-5, "atol": 1e-6, **tolerance}, equal_nan=True, check_dtype=False
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_fuse_equals_the_recursion(seed):
    parent, _, reward, draw = random_forest(seed)
    weight = [draw.uniform(0.1, 3.0) for _ in parent]
    values = fuse(torch.tensor(parent), torch.tensor(reward), torch.tensor(weight))
    assert values.dtype == torch.float32
    close(values, naive_fuse(parent, reward, weight))
    close(fuse(torch.tensor(parent), torch.tensor(reward)), naive_fuse(parent, reward, [1.0] * len(parent)))


def test_equal_leaves_and_lone_children_have_exactly_equal_values():
    # In float32 the mean of three times 0.1 is not 0.1.
    parent = torch.tensor([-1, 0, 1, 1, 1])
    leaves = [math.nan] * 2
    assert bool((fuse(parent, torch.tensor([*leaves, 0.1, 0.1, 0.1])) == torch.tensor(0.1)).all())
    values = fuse(parent, torch.tensor([*leaves, 0.1, 0.7, 0.3]), torch.tensor([1, 1, 0.3, 0.9, 0.7]))
    assert values[0] == values[1]


def test_a_root_alone_is_a_leaf():
    parent = torch.tensor([-1, -1])
    assert leaf_mask(parent).tolist() == [True, True]
    assert fuse(parent, torch.tensor([0.25, 0.5])).tolist() == [0.25, 0.5]
    empty = torch.zeros(0, dtype=torch.int64)
    assert fuse(empty, torch.zeros(0)).shape == step_rewards(torch.zeros(0), empty).shape == (0,)


@pytest.mark.parametrize("seed", SEEDS)
def test_step_rewards_telescope_along_every_path(seed):
    parent, leaves, reward, draw = random_forest(seed)
    values = fuse(torch.tensor(parent), torch.tensor(reward))
    steps = step_rewards(values, torch.tensor(parent))
    assert [math.isnan(steps[n]) for n, above in enumerate(parent) if above < 0] == [True] * parent.count(-1)
    for leaf in leaves:
        node, total = leaf, 0.0
        while parent[node] >= 0:
            total, node = total + float(steps[node]), parent[node]
        if math.isfinite(reward[leaf]):
            assert total == pytest.approx(reward[leaf] - float(values[node]), abs=1e-5)
        elif parent[leaf] >= 0:
            assert math.isnan(total)


@pytest.mark.parametrize("beta", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_path_weights_are_a_softmax_below_every_node(seed, beta):
    parent, leaves, _, draw = random_forest(seed)
    log_prob = [0.0 if above < 0 else draw.gauss(1.4, 0.6) for above in parent]
    weight = path_weights(torch.tensor(parent), torch.tensor(log_prob), beta)
    assert [float(w) > 0 for w in weight] == [n in leaves for n in range(len(parent))]
    for node in range(len(parent)):
        below = leaves_below(parent, node)
        scores = []
        for leaf in below:
            n, score = leaf, 0.0
            while n != node:
                score, n = score + log_prob[n], parent[n]
            scores.append(math.exp(beta * score))
        expected = [score / math.fsum(scores) for score in scores]
        assert (weight[below] / weight[below].sum()).tolist() == pytest.approx(expected, rel=1e-4)


def test_path_weights_of_unlikely_trees_and_branches_do_not_vanish():
    parent = torch.tensor([-1, -1, 0, 0, 1, 1, 2, 2])
    log_prob = torch.tensor([0.0, 0.0, -5e3, 3.0, -2e4, -2e4, 1.0, 1.0])
    weight = path_weights(parent, log_prob, 1.0)
    assert weight[4] == weight[5] == 1.0  # each tree is shifted by its own likeliest path
    values = fuse(parent, torch.tensor([math.nan] * 3 + [0.5, 1.0, 2.0, 3.0, 5.0]), weight)
    assert values.tolist() == pytest.approx([0.5, 1.5, 4.0, 0.5, 1.0, 2.0, 3.0, 5.0])


def test_a_roots_log_prob_is_ignored():
    parent = torch.tensor([-1, 0, 0])
    known = path_weights(parent, torch.tensor([0.0, 1.0, 2.0]), 1.0)
    assert torch.equal(path_weights(parent, torch.tensor([math.nan, 1.0, 2.0]), 1.0), known)


@pytest.mark.parametrize("seed", SEEDS)
def test_walks_over_a_forest(seed):
    parent, leaves, _, _ = random_forest(seed)

    def path(node):
        return [node, *path(parent[node])] if node >= 0 else []

    rows = torch.tensor(parent)
    assert root_of(rows).tolist() == [path(node)[-1] for node in range(len(parent))]
    assert [nodes.tolist() for nodes in levels(rows)] == [
        [node for node in range(len(parent)) if len(path(node)) == depth + 1]
        for depth in range(max(len(path(node)) for node in leaves))
    ]
    some = leaves[::2]
    expected = sorted((node, leaf) for leaf in some for node in path(leaf)[:-1])
    leaf, node = paths(rows, torch.tensor(some))
    assert list(zip(node.tolist(), leaf.tolist(), strict=True)) == expected


def test_refuses_what_it_cannot_mean():
    parent, reward = torch.tensor([-1, 0, 0]), torch.tensor([math.nan, 1.0, 2.0])
    for message, call in {
        "earlier row": lambda: fuse(torch.tensor([1, -1, 1]), reward),
        "must be .N,. like": lambda: fuse(parent, reward[:2]),
        "integers": lambda: step_rewards(reward, parent.float()),
        "NaN at inner": lambda: fuse(parent, torch.tensor([0.0, 1.0, 2.0])),
        "positive": lambda: fuse(parent, reward, torch.tensor([1.0, 0.0, 1.0])),
        "finite for every": lambda: path_weights(parent, torch.tensor([0.0, math.nan, 0.0]), 1.0),
        "beta must": lambda: path_weights(parent, torch.zeros(3), -1.0),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
