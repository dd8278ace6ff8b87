"""Ranking fidelity against scipy and plain loops."""

import math
from itertools import combinations

import pytest
import torch
from scipy import stats

from diffrl.functional.ranking import pair_agreement, ranking_fidelity

NAN = math.nan


def noisy_pair(seed, count=23, levels=None):
    """A reward and a noisy proxy of it; with `levels`, both rounded so that many tie."""
    true, noise = torch.randn(2, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    proxy = true + 0.7 * noise
    return ((proxy * levels).round(), (true * levels).round()) if levels else (proxy, true)


@pytest.mark.parametrize("levels", [None, 3, 1])
@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_scipy(seed, levels):
    proxy, true = noisy_pair(seed, levels=levels)
    got = ranking_fidelity(proxy, true, 5)
    assert got.tau == pytest.approx(stats.kendalltau(proxy.numpy(), true.numpy()).statistic, abs=1e-9)
    assert got.rho == pytest.approx(stats.spearmanr(proxy.numpy(), true.numpy()).statistic, abs=1e-9)


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("k", [1, 5, 23])
@pytest.mark.parametrize("seed", range(5))
def test_matches_and_mean_rank_equal_plain_loops(seed, k, levels):
    proxy, true = (values.tolist() for values in noisy_pair(seed, levels=levels))
    by_proxy = sorted(range(23), key=lambda i: (-proxy[i], i))
    kth_best, kth_worst = sorted(true, reverse=True)[k - 1], sorted(true)[k - 1]
    ranks = [rank - 1 for rank in stats.rankdata([-value for value in true], method="average")]
    got = ranking_fidelity(torch.tensor(proxy), torch.tensor(true), k)
    assert got.top_match == pytest.approx(sum(true[i] >= kth_best for i in by_proxy[:k]) / k)
    assert got.bottom_match == pytest.approx(sum(true[i] <= kth_worst for i in by_proxy[-k:]) / k)
    assert got.mean_rank == pytest.approx(sum(ranks[i] for i in by_proxy[:k]) / k / 22)


def test_a_tie_of_the_true_reward_costs_no_match_and_one_of_the_proxy_goes_by_index():
    true = torch.tensor([1.0, 4.0, 4.0, 4.0, 0.0])
    assert ranking_fidelity(torch.tensor([0.0, 1.0, 2.0, 9.0, -1.0]), true, 2).top_match == 1.0
    tied = torch.tensor([5.0, 5.0, 5.0, 2.0, 2.0])
    assert ranking_fidelity(tied, true, 2).top_match == 0.5  # candidates 0 and 1
    assert ranking_fidelity(tied, true, 2).bottom_match == 0.5  # candidates 3 and 4
    # The average rank of the three best is 1 of 4.
    assert ranking_fidelity(tied, true, 2).mean_rank == pytest.approx((3 + 1) / 2 / 4)


def test_precision_does_not_make_ties():
    true = torch.tensor([1.0, 1.0 + 1e-12, 1.0 + 2e-12], dtype=torch.float64)
    assert ranking_fidelity(torch.tensor([1.0, 2.0, 3.0]), true, 1)[:2] == (1.0, 1.0)
    assert ranking_fidelity(true, torch.tensor([1.0, 2.0, 3.0]), 1)[:2] == (1.0, 1.0)


@pytest.mark.parametrize("failed", [NAN, math.inf, -math.inf])
def test_failed_rewards_are_left_out(failed):
    proxy, true = noisy_pair(7, count=11)
    gaps = torch.tensor([failed, failed, failed])
    with_gaps = ranking_fidelity(
        torch.cat([gaps, proxy, torch.zeros(2)]), torch.cat([torch.zeros(3), true, gaps[:2]]), 3
    )
    assert with_gaps == ranking_fidelity(proxy, true, 3)


def test_too_little_to_tell_is_nan():
    flat, rising = torch.full((5,), 0.7), torch.arange(5.0)
    for proxy, true in [(flat, rising), (rising, flat), (flat, flat)]:
        got = ranking_fidelity(proxy, true, 2)
        assert (
            math.isnan(got.tau)
            and math.isnan(got.rho)
            and got.mean_rank == pytest.approx(0.5 if true is flat else 1 - 1 / 8)
        )
    only_one = torch.tensor([NAN, NAN, 2.0, NAN, NAN])
    assert all(math.isnan(value) for value in ranking_fidelity(only_one, rising, 1))
    assert all(math.isnan(value) for value in ranking_fidelity(torch.zeros(0), torch.zeros(0), 1))
    short = ranking_fidelity(torch.tensor([NAN, 1.0, 2.0]), torch.arange(3.0), 3)
    assert short[:2] == (1.0, 1.0) and all(math.isnan(value) for value in short[2:])


@pytest.mark.parametrize("seed", range(5))
def test_pair_agreement_equals_a_loop_over_pairs(seed):
    generator = torch.Generator().manual_seed(seed)
    proxy, true = noisy_pair(seed, count=31, levels=2)
    proxy[4] = true[9] = NAN
    groups = 100 - 7 * torch.randint(3, (31,), generator=generator)
    chosen = torch.rand(31, generator=generator) < 0.3
    counts = [0, 0, 0]
    for i, j in combinations(range(31), 2):
        if groups[i] != groups[j] or not (chosen[i] or chosen[j]) or {i, j} & {4, 9}:
            continue
        product = float((proxy[i] - proxy[j]) * (true[i] - true[j]))
        counts[0 if product > 0 else 1 if product < 0 else 2] += 1
    assert pair_agreement(proxy, true, groups, chosen) == tuple(counts) and min(counts) > 0


def test_pair_agreement_of_nobody_is_nothing():
    assert pair_agreement(torch.arange(5.0), torch.arange(5.0), torch.zeros(5).long(), torch.zeros(5).bool()) == (
        0,
        0,
        0,
    )


def test_refuses_wrong_arguments():
    values, groups, chosen = torch.arange(5.0), torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"proxy and true must both be \(N,\)"):
        ranking_fidelity(values, values[:3], 2)
    with pytest.raises(ValueError, match=r"must both be \(N,\)"):
        ranking_fidelity(values.reshape(1, 5), values.reshape(1, 5), 2)
    with pytest.raises(ValueError, match="k must be at least 1"):
        ranking_fidelity(values, values, 0)
    with pytest.raises(ValueError, match="proxy and chosen"):
        pair_agreement(values, values, groups, chosen[:2])
    with pytest.raises(ValueError, match="groups must be integer and chosen bool"):
        pair_agreement(values, values, groups, groups)
    with pytest.raises(ValueError, match="groups must be integer and chosen bool"):
        pair_agreement(values, values, values, chosen)
