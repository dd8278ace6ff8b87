"""Turning points against tables by hand and against the enumeration of all paths."""

import math
import random

import pytest
import torch

from diffrl.functional.turning_points import turning_point_rewards

NAN = math.nan


def sign(x):
    return (x > 0) - (x < 0)


def naive(values, reward, parent, constraint, balance, weight, group):
    """The definition path by path: rewards, nodes with a replacement, and how many were found and dropped."""
    paths = {}
    for leaf in (n for n in range(len(parent)) if n not in parent and math.isfinite(reward[n])):
        paths[leaf] = [leaf]
        while parent[paths[leaf][0]] >= 0:
            paths[leaf].insert(0, parent[paths[leaf][0]])
    found = {}
    for leaf, path in paths.items():
        r = [values[c] - values[u] for u, c in zip(path, path[1:], strict=False)]
        gain = reward[leaf] - values[path[0]]
        for j, node in enumerate(path[1:]):
            onward = sign(r[j]) * sign(reward[leaf] - values[node])
            if j == 0:
                turns = onward > 0 if constraint else sign(r[0]) * sign(gain) > 0
            else:
                turns = sign(r[j - 1]) * sign(gain) < 0 and sign(r[j]) * sign(gain) > 0
                turns = turns and (onward > 0 or not constraint)
            if turns:
                found[node, leaf] = reward[leaf] - values[path[j]]
    dropped = set()
    for one in set(group) if balance else ():
        sides = [[p for p in found if group[p[1]] == one and sign(found[p]) == side] for side in (1, -1)]
        excess = sorted(max(sides, key=len), key=lambda p: (-abs(found[p]), p))[min(map(len, sides)) :]
        dropped.update(excess)
    rewards = []
    for node, above in enumerate(parent):
        below = [leaf for leaf, path in paths.items() if node in path[1:]]
        parts = [
            found[node, leaf] if (node, leaf) in found and (node, leaf) not in dropped else values[node] - values[above]
            for leaf in below
        ]
        total = sum(weight[leaf] for leaf in below)
        rewards.append(sum(weight[leaf] * r for leaf, r in zip(below, parts, strict=True)) / total if below else NAN)
    replaced = [any(p[0] == node and p not in dropped for p in found) for node in range(len(parent))]
    counts = [sum(sign(r) == side for r in found.values()) for side in (1, -1)]
    return rewards, replaced, (*counts, len(dropped))


def compare(result, expected):
    rewards, replaced, counts = expected
    torch.testing.assert_close(result.rewards, torch.tensor(rewards), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert result.replaced.tolist() == replaced
    assert (result.positive, result.negative, result.dropped) == counts


def chains(*values, **options):
    """Turning points of chains, each given by the values of its nodes, the last one its reward."""
    parent, flat, reward = [], [], []
    for chain in values:
        parent += [-1, *range(len(flat), len(flat) + len(chain) - 1)]
        flat += chain
        reward += [NAN] * (len(chain) - 1) + [chain[-1]]
    return turning_point_rewards(torch.tensor(flat), torch.tensor(reward), torch.tensor(parent), **options)


# Values along a chain, rewards and turns with the constraint, rewards and turns without it.
TABLE = {
    "turns, and goes on": ([0, -1, 0.5, 1], [-1, 2, 0.5], [2], [-1, 2, 0.5], [2]),
    "turns downwards": ([0, 1, -0.5, -1], [1, -2, -0.5], [2], [1, -2, -0.5], [2]),
    "overshoots": ([0, -1, 3, 1], [-1, 4, -2], [], [-1, 2, -2], [2]),
    "reaches the end": ([0, -1, 2, 2], [-1, 3, 0], [], [-1, 3, 0], [2]),
    "the first step has no predecessor": ([0, 0.5, 1], [1, 0.5], [1], [1, 0.5], [1]),
    "the first step overshoots": ([0, 2, 1], [2, -1], [], [1, -1], [1]),
    "the first step is against the gain": ([0, -2, 1], [-2, 3], [], [-2, 3], [2]),
    "no gain": ([1, 0, 3, 1], [-1, 3, -2], [], [-1, 3, -2], []),
    "a first step of zero": ([0, 0, 1, 2], [0, 1, 1], [], [0, 1, 1], []),
    "zero before the turn": ([0, -1, -1, 1, 2], [-1, 0, 2, 1], [], [-1, 0, 2, 1], []),
    "a long-term reward of zero": ([0, 3, 2, 5, 2], [3, -1, 3, -3], [], [2, -1, 0, -3], [1, 3]),
    "a long-term reward of the other sign": ([0, 5, 4, 7, 2], [5, -1, 3, -5], [], [2, -1, -2, -5], [1, 3]),
    "two turns": ([0, -1, 1, 0, 2, 3], [-1, 4, -1, 3, 1], [2, 4], [-1, 4, -1, 3, 1], [2, 4]),
    "without steps": ([1], [], [], [], []),
}


@pytest.mark.parametrize("constraint", [True, False])
@pytest.mark.parametrize("case", TABLE)
def test_chains_by_hand(case, constraint):
    values, *expected = TABLE[case]
    rewards, turns = expected[:2] if constraint else expected[2:]
    result = chains([float(v) for v in values], constraint=constraint, balance=False)
    assert result.rewards.tolist()[1:] == rewards and math.isnan(result.rewards[0])
    assert torch.nonzero(result.replaced).flatten().tolist() == turns
    assert result.dropped == 0


def random_tree(seed, nodes=43):
    """Values in eighths, so that ties and zeros are common, and exact."""
    draw = random.Random(seed)
    parent = [-1]
    for node in range(1, nodes):
        parent.append(-1 if draw.random() < 0.06 else draw.randrange(max(0, node - 6), node))
    values = [draw.randrange(-8, 9) / 8 for _ in parent]
    reward = [NAN] * nodes
    for leaf in (n for n in range(nodes) if n not in parent):
        reward[leaf] = NAN if draw.random() < 0.15 else values[leaf]
    group = []
    for above in parent:
        group.append(draw.choice([-3, 10**6]) if above < 0 else group[above])
    return values, reward, parent, [draw.uniform(0.2, 2.0) for _ in parent], group


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("constraint", [True, False])
def test_trees_equal_the_enumeration_of_their_paths(constraint, balance):
    turned = 0
    for seed in range(29):
        tree = random_tree(seed)
        values, reward, parent, weight, group = (torch.tensor(column) for column in tree)
        result = turning_point_rewards(values, reward, parent, constraint, balance, weight, group)
        compare(result, naive(*tree[:3], constraint, balance, *tree[3:]))
        plain = turning_point_rewards(values, reward, parent, constraint, balance)
        ones = [1.0] * len(tree[2])
        compare(plain, naive(*tree[:3], constraint, balance, ones, ones))
        turned += int(result.replaced.sum())
    assert turned > 29


def ups_and_downs(ups, downs):
    """Chains whose second step turns, each with a long-term reward of its own; the first step is of size 1."""
    return [[0.0, -1.0, up - 1.0 - 0.25, up - 1.0] for up in ups] + [
        [0.0, 1.0, 1.25 - down, 1.0 - down] for down in downs
    ]


def test_balancing_drops_the_smallest_and_keeps_their_step_rewards():
    values = ups_and_downs([3.0, 5.0, 2.0, 4.0], [6.0, 2.5])
    result = chains(*values)
    turns = result.rewards.reshape(6, 4)[:, 2].tolist()
    assert turns == [2.75, 5.0, 1.75, 4.0, -6.0, -2.5]
    assert result.replaced.reshape(6, 4)[:, 2].tolist() == [False, True, False, True, True, True]
    assert (result.positive, result.negative, result.dropped) == (4, 2, 2)
    assert chains(*values, balance=False).rewards.reshape(6, 4)[:, 2].tolist() == [3.0, 5.0, 2.0, 4.0, -6.0, -2.5]


def test_unknown_values_are_passed_by():
    unknown = chains([0.0, -1.0, 0.5, 1.0], [NAN, -1.0, 0.5, 1.0], [0.0, NAN, 0.5, 1.0], balance=False).rewards.reshape(
        3, 4
    )
    torch.testing.assert_close(
        unknown[:, 1:], torch.tensor([[-1, 2, 0.5], [NAN, 1.5, 0.5], [NAN, NAN, 0.5]]), equal_nan=True
    )


def test_nothing_at_all():
    empty = turning_point_rewards(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert empty.rewards.shape == empty.replaced.shape == (0,) and empty[2:] == (0, 0, 0)
    failed = chains([0.0, 1.0, NAN])
    assert bool(failed.rewards.isnan().all()) and failed[2:] == (0, 0, 0)


def test_refuses_other_shapes():
    parent = torch.tensor([-1, 0])
    for name in ("values", "leaf_reward", "leaf_weight", "group"):
        columns = {"values": torch.zeros(2), "leaf_reward": torch.tensor([NAN, 0.0]), name: torch.zeros(3)}
        with pytest.raises(ValueError, match=name):
            turning_point_rewards(parent=parent, **columns)
