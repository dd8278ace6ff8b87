"""Group advantages against plain Python, and the properties they must have."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffrl.functional.advantages import compare, group_advantage

BASELINES = {"mean": statistics.fmean, "median": statistics.median}


SCALES = [("mean", "group"), ("mean", "batch"), ("median", "group"), ("median", "batch"), ("median", "mad")]


def naive_mad(peers):
    """Median absolute deviation, one reward at a time."""
    return statistics.median([abs(reward - statistics.median(peers)) for reward in peers])


def naive(rewards, groups, ok, baseline, std, eps=1e-4, clamp=5.0, minimum=2):
    """The definition, one sample at a time."""
    usable = [flag and math.isfinite(reward) for reward, flag in zip(rewards, ok, strict=True)]
    kept = [reward for reward, flag in zip(rewards, usable, strict=True) if flag]
    members = {
        group: [r for r, g, u in zip(rewards, groups, usable, strict=True) if g == group and u] for group in set(groups)
    }
    advantage = []
    for reward, group, flag in zip(rewards, groups, usable, strict=True):
        peers = members[group]
        if not flag or len(peers) < minimum or without_spread(peers, std):
            advantage.append(0.0)
            continue
        scale = naive_mad(peers) if std == "mad" else statistics.pstdev(kept if std == "batch" else peers)
        scale += eps
        advantage.append(min(max((reward - BASELINES[baseline](peers)) / scale, -clamp), clamp))
    enough = [peers for peers in members.values() if len(peers) >= minimum]
    return advantage, sum(without_spread(peers, std) for peers in enough), len(members) - len(enough)


def without_spread(peers, std):
    """All equal, or by the MAD more than half."""
    return min(peers) == max(peers) or (std == "mad" and max(peers.count(r) for r in peers) > len(peers) / 2)


# float32 values, so that both sides see the same numbers; few of them, so that ties are common.
rewards_strategy = st.one_of(
    st.sampled_from([0.0, 0.1, 0.25, 1.0]).map(lambda r: float(torch.tensor(r))),
    st.floats(-3, 3, width=32),
    st.sampled_from([math.nan, math.inf]),
)
samples_strategy = st.lists(
    st.tuples(rewards_strategy, st.sampled_from([-7, 0, 3, 10**12]), st.sampled_from([True] * 6 + [False])),
    min_size=1,
    max_size=23,
)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(samples_strategy, st.sampled_from(SCALES), st.integers(1, 4))
def test_equals_the_definition(samples, scale, minimum):
    baseline, std = scale
    rewards, groups, ok = (list(column) for column in zip(*samples, strict=True))
    expected, zero_spread, dropped = naive(rewards, groups, ok, baseline, std, minimum=minimum)
    result = group_advantage(
        torch.tensor(rewards), torch.tensor(groups), torch.tensor(ok), baseline, std, minimum=minimum
    )
    assert result.advantage.dtype == torch.float32
    torch.testing.assert_close(result.advantage, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert (result.zero_spread, result.dropped) == (zero_spread, dropped)


@pytest.mark.parametrize(("baseline", "std"), SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_without_spread_gets_exactly_zero_and_is_counted(baseline, std, dtype):
    # In floating point the mean of seven times 0.1 is not 0.1.
    rewards = torch.tensor([0.1] * 7 + [0.3, 0.7, 0.2], dtype=dtype)
    groups = torch.tensor([4] * 7 + [9] * 3)
    result = group_advantage(rewards, groups, baseline=baseline, std=std)
    assert bool((result.advantage[:7] == 0.0).all())
    assert bool((result.advantage[7:] != 0.0).any())
    assert (result.zero_spread, result.dropped) == (1, 0)


def test_equal_prompts_in_two_groups_stay_two_groups():
    rewards = torch.tensor([0.0, 1.0, 10.0, 12.0])
    apart = group_advantage(rewards, torch.tensor([0, 0, 1, 1]), eps=0.0).advantage
    merged = group_advantage(rewards, torch.tensor([0, 0, 0, 0]), eps=0.0).advantage
    assert apart.tolist() == pytest.approx([-1, 1, -1, 1])
    assert merged[1] < 0 < apart[1]


def test_failed_samples_enter_no_statistic():
    groups = torch.tensor([2, 2, 2, 2, 2, 5, 5, 5])
    rewards = torch.tensor([0.0, math.nan, 1.0, 1e6, 0.25, 0.5, math.nan, math.nan])
    ok = torch.tensor([True, True, True, False, True, True, True, True])
    result = group_advantage(rewards, groups, ok)
    clean = group_advantage(torch.tensor([0.0, 1.0, 0.25]), torch.tensor([2, 2, 2]))
    assert torch.equal(result.advantage[[0, 2, 4]], clean.advantage)
    assert result.advantage[[1, 3, 5, 6, 7]].tolist() == [0.0] * 5
    assert (result.zero_spread, result.dropped) == (0, 1)


@pytest.mark.parametrize("size", [3, 5, 7])
def test_the_median_sample_of_an_odd_group_gets_zero(size):
    rewards = torch.rand(size, generator=torch.Generator().manual_seed(size))
    advantage = group_advantage(rewards, torch.zeros(size, dtype=torch.int64), baseline="median").advantage
    middle = rewards.argsort()[size // 2]
    assert advantage[middle] == 0.0
    assert int((advantage > 0).sum()) == int((advantage < 0).sum()) == size // 2


def test_median_absolute_deviation_on_paper():
    """Median 3, distances 3, 1, 0, 1, 97, their median 1; an even group takes the mean of the two middle ones."""
    groups = torch.tensor([8] * 5 + [1] * 4)
    rewards = torch.tensor([0.0, 2, 3, 4, 100, 1, 2, 4, 9])
    found = compare(rewards, groups, baseline="median", std="mad", eps=0.0, clamp=50.0)
    assert found.centre.tolist() == [3.0] * 5 + [3.0] * 4
    assert found.spread.tolist() == [1.0] * 5 + [1.5] * 4  # distances 2, 1, 1, 6
    expected = [-3, -1, 0, 1, 50, -4 / 3, -2 / 3, 2 / 3, 4]
    torch.testing.assert_close(found.group.advantage, torch.tensor(expected), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("rewards", "zero_spread"), [([1, 1, 1, 0, 5], 1), ([1, 1, 0, 5], 0), ([1, 1, 1, 0, 3, 5], 0)])
def test_a_group_of_which_more_than_half_is_equal_has_no_mad(rewards, zero_spread):
    """Rare passes among failures: nothing trains, and it is counted. Half the group alike is not enough for it."""
    rewards, others = torch.tensor(rewards, dtype=torch.float32), torch.tensor([0.0, 1.0, 5.0])
    groups = torch.tensor([7] * len(rewards) + [2] * 3)
    found = compare(torch.cat([rewards, others]), groups, baseline="median", std="mad")
    assert (found.group.zero_spread, found.group.dropped) == (zero_spread, 0)
    assert bool(found.group.advantage[: len(rewards)].any()) != bool(zero_spread)
    assert bool(found.spread[: len(rewards)].isnan().all()) == bool(zero_spread)
    assert found.group.advantage[-1] != 0.0


def test_batch_std_puts_groups_on_one_scale():
    rewards, groups = torch.tensor([0.0, 2.0, 0.0, 0.2]), torch.tensor([0, 0, 1, 1])
    group = group_advantage(rewards, groups, std="group", eps=0.0).advantage
    batch = group_advantage(rewards, groups, std="batch", eps=0.0).advantage
    torch.testing.assert_close(group[1], group[3], rtol=1e-5, atol=0.0)
    torch.testing.assert_close(batch[1], 10 * batch[3], rtol=1e-5, atol=0.0)


def test_without_eps_a_group_has_mean_zero_and_population_std_one():
    rewards = torch.rand(17, generator=torch.Generator().manual_seed(1))
    advantage = group_advantage(rewards, torch.full((17,), 3), eps=0.0).advantage
    assert float(advantage.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(advantage.square().mean()) == pytest.approx(1.0, rel=1e-5)


def test_clamps_outliers():
    rewards = torch.tensor([0.0] * 101 + [1.0])
    groups = torch.zeros(102, dtype=torch.int64)
    assert float(group_advantage(rewards, groups).advantage[-1]) == 5.0
    assert float(group_advantage(rewards, groups, clamp=2.0).advantage[-1]) == 2.0
    assert float(group_advantage(-rewards, groups).advantage[-1]) == -5.0


@pytest.mark.parametrize(("baseline", "std"), SCALES)
def test_the_order_of_samples_does_not_matter(baseline, std):
    generator = torch.Generator().manual_seed(5)
    rewards, groups = torch.rand(41, generator=generator), torch.randint(0, 7, (41,), generator=generator) * 13
    ok = torch.rand(41, generator=generator) > 0.2
    shuffled = torch.randperm(41, generator=generator)
    straight = group_advantage(rewards, groups, ok, baseline, std)
    permuted = group_advantage(rewards[shuffled], groups[shuffled], ok[shuffled], baseline, std)
    torch.testing.assert_close(permuted.advantage, straight.advantage[shuffled], rtol=1e-6, atol=1e-7)
    assert permuted[1:] == straight[1:]


def test_no_samples_and_no_usable_samples():
    empty = group_advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert empty.advantage.shape == (0,) and empty[1:] == (0, 0)
    none_usable = group_advantage(torch.full((3,), math.nan), torch.tensor([0, 0, 1]))
    assert none_usable.advantage.tolist() == [0.0] * 3 and none_usable[1:] == (0, 2)


def test_refuses_what_it_cannot_mean():
    rewards, groups = torch.rand(4), torch.tensor([0, 0, 1, 1])
    for wrong, options in {
        "must both be": {"groups": groups[:3]},
        "ok must both be": {"ok": torch.ones(4, 1, dtype=torch.bool)},
        "integer ids": {"groups": groups.float()},
        "baseline must be": {"baseline": "mode"},
        "std must be": {"std": "none"},
        "minimum must be": {"minimum": 0},
        "eps and clamp": {"clamp": -1.0},
    }.items():
        with pytest.raises(ValueError, match=wrong):
            group_advantage(rewards, **{"groups": groups, **options})
