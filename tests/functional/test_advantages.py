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


def test_median_absolute_deviation_on_paper():
    """Median 3, distances 3, 1, 0, 1, 97, their median 1; an even group takes the mean of the two middle ones."""
    groups = torch.tensor([8] * 5 + [1] * 4)
    rewards = torch.tensor([0.0, 2, 3, 4, 100, 1, 2, 4, 9])
    found = compare(rewards, groups, baseline="median", std="mad", eps=0.0, clamp=50.0)
    assert found.centre.tolist() == [3.0] * 5 + [3.0] * 4
    assert found.spread.tolist() == [1.0] * 5 + [1.5] * 4  # distances 2, 1, 1, 6
    expected = [-3, -1, 0, 1, 50, -4 / 3, -2 / 3, 2 / 3, 4]
    torch.testing.assert_close(found.group.advantage, torch.tensor(expected), rtol=1e-6, atol=0.0)


def test_clamps_outliers():
    rewards = torch.tensor([0.0] * 101 + [1.0])
    groups = torch.zeros(102, dtype=torch.int64)
    assert float(group_advantage(rewards, groups).advantage[-1]) == 5.0
    assert float(group_advantage(rewards, groups, clamp=2.0).advantage[-1]) == 2.0
    assert float(group_advantage(-rewards, groups).advantage[-1]) == -5.0


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
