"""Every edge gets its own sample's advantage, from statistics of the whole iteration."""

import math
import statistics

import pytest
import torch

from diffrl.credit.assign import outcome_credit

REWARDS = [0.31, 0.47, 0.83, 0.05, 0.61, 0.77, 0.29, 0.11, 0.53]
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2, 2]


def naive(rewards, groups, baseline=statistics.fmean, ok=None):
    """Advantage of each reward by hand; samples that are not ok have none."""
    found = []
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        members = [r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and (not ok or ok[j])]
        usable = not ok or ok[i]
        found.append((reward - baseline(members)) / (statistics.pstdev(members) + 1e-4) if usable else 0.0)
    return found


def credit_of(rewards=REWARDS, groups=GROUPS, ok=None, mine=slice(0, 9), sample=(8, 0, 0, 5, 3), **options):
    ok = torch.ones(len(rewards), dtype=torch.bool) if ok is None else torch.tensor(ok)
    return outcome_credit(torch.tensor(rewards), torch.tensor(groups), ok, mine, torch.tensor(sample), **options)


def test_edges_take_their_samples_advantage():
    expected, credit = naive(REWARDS, GROUPS), credit_of()
    assert credit.outcome.tolist() == pytest.approx(expected, rel=1e-4)
    assert credit.advantage.tolist() == pytest.approx([expected[i] for i in (8, 0, 0, 5, 3)], rel=1e-4)
    assert (credit.zero_spread_groups, credit.dropped_groups) == (0, 0)


@pytest.mark.parametrize("first", [0, 3, 6])
def test_a_ranks_rows_are_its_part_of_the_whole(first):
    expected = naive(REWARDS, GROUPS)[first : first + 3]
    credit = credit_of(mine=slice(first, first + 3), sample=(2, 0, 1, 2))
    assert credit.outcome.tolist() == pytest.approx(expected, rel=1e-4)
    assert credit.advantage.tolist() == pytest.approx([expected[i] for i in (2, 0, 1, 2)], rel=1e-4)


def test_the_batch_std_is_that_of_all_ranks():
    credit = credit_of(mine=slice(3, 6), sample=(0,), std="batch")
    spread, centre = statistics.pstdev(REWARDS), statistics.fmean(REWARDS[3:6])
    assert credit.outcome.tolist() == pytest.approx([(r - centre) / (spread + 1e-4) for r in REWARDS[3:6]], rel=1e-4)


def test_failed_samples_get_nothing_and_do_not_disturb_the_others():
    rewards, ok = [*REWARDS], [True] * 9
    rewards[1], ok[1] = math.nan, False
    credit = credit_of(rewards, ok=ok, sample=(1, 0, 2))
    expected = naive(rewards, GROUPS, ok=ok)
    assert credit.outcome.tolist() == pytest.approx(expected, rel=1e-4)
    assert credit.advantage.tolist() == pytest.approx([0.0, expected[0], expected[2]], rel=1e-4)


def test_flat_and_dropped_groups_are_counted():
    rewards, ok = [0.5, 0.5, 0.5, *REWARDS[3:]], [True] * 7 + [False] * 2
    credit = credit_of(rewards, ok=ok)
    assert (credit.zero_spread_groups, credit.dropped_groups) == (1, 1)
    assert credit.outcome[:3].tolist() == [0.0] * 3 and credit.outcome[6:].tolist() == [0.0] * 3
    assert credit_of(rewards, ok=ok, minimum=1).dropped_groups == 0


def test_median_and_clamp():
    credit = credit_of(baseline="median", clamp=0.9)
    expected = [max(-0.9, min(0.9, a)) for a in naive(REWARDS, GROUPS, statistics.median)]
    assert credit.outcome.tolist() == pytest.approx(expected, rel=1e-4)
    assert credit.outcome[1] == 0.0 and 0.9 in [round(x, 6) for x in credit.outcome.tolist()]
