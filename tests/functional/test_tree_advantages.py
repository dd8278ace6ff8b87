"""Advantages of steps of trees, and of several rewards, against plain Python."""

import math
import random
import statistics

import pytest
import torch

from diffrl.functional.advantages import (
    depth_advantage,
    gdpo_advantage,
    group_advantage,
    population_std,
    sibling_advantage,
)

NAN = math.nan


def nodes_of_two_prompts(seed):
    """Two trees of prompt 7 and one of prompt -2, three levels each: parents, prompts, depths, rewards, ok."""
    draw = random.Random(seed)
    parent, prompt, depth = [-1] * 3, [7, -2, 7], [-1] * 3
    for level, above in ((0, range(3)), (4, range(3, 12))):
        for node in above:
            for _ in range(3 if level == 0 else draw.choice([1, 2])):
                parent.append(node)
                prompt.append(prompt[node])
                depth.append(level)
    reward = [NAN if above < 0 or draw.random() < 0.1 else draw.uniform(-2, 2) for above in parent]
    return parent, prompt, depth, reward, [draw.random() > 0.1 for _ in parent]


def median_absolute_deviation(peers):
    return statistics.median([abs(reward - statistics.median(peers)) for reward in peers])


def usable(reward, ok):
    return [math.isfinite(r) and o for r, o in zip(reward, ok, strict=True)]


def peers_of(node, prompt, depth, reward, good):
    return [reward[n] for n in range(len(reward)) if good[n] and (prompt[n], depth[n]) == (prompt[node], depth[node])]


@pytest.mark.parametrize(("baseline", "std"), [("mean", "group"), ("median", "group"), ("median", "mad")])
@pytest.mark.parametrize("seed", range(5))
def test_depth_compares_a_prompts_nodes_of_one_depth(seed, baseline, std):
    _, prompt, depth, reward, ok = nodes_of_two_prompts(seed)
    good, expected = usable(reward, ok), []
    for node in range(len(reward)):
        peers = peers_of(node, prompt, depth, reward, good)
        centre = {"mean": statistics.fmean, "median": statistics.median}[baseline]
        trains = good[node] and len(peers) >= 2
        spread = statistics.pstdev if std == "group" else median_absolute_deviation
        expected.append((reward[node] - centre(peers)) / (spread(peers) + 1e-4) if trains else 0.0)
    columns = (torch.tensor(column) for column in (reward, prompt, depth, ok))
    advantage = depth_advantage(*columns, baseline=baseline, std=std)
    torch.testing.assert_close(advantage, torch.tensor(expected).clamp(-5, 5), rtol=1e-4, atol=1e-5)
    assert advantage[:3].tolist() == [0.0] * 3


@pytest.mark.parametrize("with_centre", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_siblings_are_centred_on_their_parent_in_units_of_their_depth(seed, with_centre):
    parent, prompt, depth, reward, ok = nodes_of_two_prompts(seed)
    draw = random.Random(seed + 100)
    centre = [draw.uniform(-1, 1) for _ in parent]
    centre[4] = NAN
    good, expected = usable(reward, ok), []
    for node in range(len(reward)):
        peers = peers_of(node, prompt, depth, reward, good)
        base = centre[parent[node]] if with_centre else 0.0
        trains = good[node] and len(peers) >= 2 and parent[node] >= 0 and math.isfinite(base)
        expected.append((reward[node] - base) / (statistics.pstdev(peers) + 1e-4) if trains else 0.0)
    columns = [torch.tensor(column) for column in (reward, parent, prompt, depth)]
    advantage = sibling_advantage(*columns, torch.tensor(centre) if with_centre else None, torch.tensor(ok))
    torch.testing.assert_close(advantage, torch.tensor(expected).clamp(-5, 5), rtol=1e-4, atol=1e-5)


def test_roots_end_no_step_whatever_stands_there():
    parent, prompt = torch.tensor([-1, -1, 0, 0, 1, 1]), torch.zeros(6, dtype=torch.int64)
    depth, rewards = torch.tensor([-1, -1, 0, 0, 0, 0]), torch.tensor([3.0, 9.0, 1.0, 2.0, 3.0, 5.0])
    advantage = sibling_advantage(rewards, parent, prompt, depth)
    assert torch.equal(advantage, sibling_advantage(rewards.where(parent >= 0, NAN), parent, prompt, depth))
    assert advantage[:2].tolist() == [0.0, 0.0] and bool((advantage[2:] != 0).all())


def test_no_spread_gives_exactly_zero_and_outliers_are_clamped():
    size = 103
    parent = torch.tensor([-1] + [0] * size)
    prompt, depth = torch.zeros(size + 1, dtype=torch.int64), torch.tensor([-1] + [0] * size)
    equal = torch.tensor([NAN] + [0.1] * size)
    outlier = torch.tensor([NAN] + [0.0] * (size - 1) + [1.0])
    assert bool((sibling_advantage(equal, parent, prompt, depth) == 0.0).all())
    assert bool((depth_advantage(equal, prompt, depth) == 0.0).all())
    for advantage in (depth_advantage(outlier, prompt, depth), sibling_advantage(outlier, parent, prompt, depth)):
        assert float(advantage[-1]) == 5.0
    assert float(sibling_advantage(outlier, parent, prompt, depth, clamp=2.0)[-1]) == 2.0


def test_too_few_nodes_of_a_depth_do_not_train():
    parent, prompt, depth = torch.tensor([-1, 0, 0, 1, 2, 2]), torch.zeros(6, dtype=torch.int64), None
    depth, rewards = torch.tensor([-1, 0, 0, 1, 1, 1]), torch.tensor([NAN, 1.0, 2.0, 3.0, 4.0, 6.0])
    for advantage in (
        depth_advantage(rewards, prompt, depth, minimum=3),
        sibling_advantage(rewards, parent, prompt, depth, minimum=3),
    ):
        assert [float(a) != 0.0 for a in advantage] == [False] * 3 + [True] * 3


def test_a_given_spread_replaces_the_groups():
    rewards, groups = torch.tensor([0.0, 2.0, 3.0, 3.5]), torch.tensor([0, 0, 1, 1])
    advantage = group_advantage(rewards, groups, spread=torch.tensor(0.5), eps=0.0).advantage
    assert advantage.tolist() == [-2.0, 2.0, -0.5, 0.5]
    alone = group_advantage(rewards, groups, std="batch")
    assert torch.equal(alone.advantage, group_advantage(rewards, groups, spread=population_std(rewards)).advantage)


def test_the_std_of_usable_rewards():
    rewards, ok = torch.tensor([1.0, NAN, 4.0, 100.0, 2.0]), torch.tensor([True, True, True, False, True])
    assert float(population_std(rewards, ok)) == pytest.approx(statistics.pstdev([1.0, 4.0, 2.0]))
    assert math.isnan(population_std(rewards[:0]))


def naive_gdpo(rewards, groups, weights, good):
    total = []
    for i, group in enumerate(groups):
        members = [j for j, g in enumerate(groups) if g == group and good[j]]
        if not good[i] or len(members) < 2:
            total.append(None)
            continue
        z = 0.0
        for reward, weight in zip(rewards, weights, strict=True):
            peers = [reward[j] for j in members]
            z += weight * (reward[i] - statistics.fmean(peers)) / (statistics.pstdev(peers) + 1e-4)
        total.append(z)
    kept = [z for z in total if z is not None]
    scale = statistics.pstdev(kept) + 1e-4
    return [0.0 if z is None else (z - statistics.fmean(kept)) / scale for z in total]


@pytest.mark.parametrize("seed", range(5))
def test_gdpo_normalises_each_reward_in_its_group_and_the_sum_over_the_batch(seed):
    draw = random.Random(seed)
    groups = [9] * 7 + [-4] * 5 + [10**12] * 3 + [2]
    rewards = [[draw.gauss(0, scale) for _ in groups] for scale in (1.0, 1000.0, 0.1)]
    rewards[1][3], weights = NAN, [1.0, 0.5, 2.0]
    ok = [i != 9 for i in range(len(groups))]
    good = [o and all(math.isfinite(reward[i]) for reward in rewards) for i, o in enumerate(ok)]
    expected = naive_gdpo(rewards, groups, weights, good)
    advantage = gdpo_advantage(*(torch.tensor(column) for column in (rewards, groups, weights, ok)))
    assert advantage.dtype == torch.float32
    torch.testing.assert_close(advantage, torch.tensor(expected), rtol=1e-3, atol=1e-5)


def test_gdpo_without_spread_clamps_and_edges():
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    advantage = gdpo_advantage(
        torch.tensor([[0.1, 0.1, 0.1, 1, 2, 4], [0.7, 0.7, 0.7, 5, 5, 5]]), groups, torch.ones(2)
    )
    assert advantage[:3].tolist() == [0.0] * 3 and float(advantage[5]) > 0
    assert bool((gdpo_advantage(torch.full((2, 6), 0.1), groups, torch.ones(2)) == 0).all())
    assert bool((gdpo_advantage(torch.full((2, 6), NAN), groups, torch.ones(2)) == 0).all())
    assert gdpo_advantage(torch.zeros(2, 0), groups[:0], torch.ones(2)).shape == (0,)
    outlier = torch.tensor([[0.0] * 102 + [1.0]])
    one = torch.zeros(103, dtype=torch.int64)
    assert float(gdpo_advantage(outlier, one, torch.ones(1))[-1]) == 5.0
    assert float(gdpo_advantage(outlier, one, torch.ones(1), clamp=torch.inf)[-1]) == pytest.approx(102**0.5, rel=1e-2)


def test_refuses_other_shapes():
    rewards, ids = torch.rand(4), torch.zeros(4, dtype=torch.int64)
    for message, call in {
        "prompt must": lambda: depth_advantage(rewards, ids[:3], ids),
        "depth must": lambda: depth_advantage(rewards, ids, ids[:3]),
        "parent must": lambda: sibling_advantage(rewards, ids[:3], ids, ids),
        "centre must": lambda: sibling_advantage(rewards, ids, ids, ids, rewards[:3]),
        "minimum must": lambda: sibling_advantage(rewards, ids, ids, ids, minimum=0),
        "weights .R,": lambda: gdpo_advantage(rewards.reshape(2, 2), ids[:2], torch.ones(3)),
        "groups must": lambda: gdpo_advantage(rewards.reshape(2, 2), ids, torch.ones(2)),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
