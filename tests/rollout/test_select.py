"""Choosing among candidates: how many, which, why, and that ranks do not matter."""

import math
import re

import pytest
import torch

from diffrl.records import Exploration, Prompt, PromptBatch, RewardTable
from diffrl.rollout.select import choose
from diffrl.rollout.tree import plan_forest

BRANCHING = {0: 2, 3: 3}  # 6 leaves a tree
ROOTS, EACH = 3, 18
GROUPS = (4, 17, 3, 11, 29)
METHODS = ["best_worst", "max_variance", "sibling_contrast", "family_contrast", "random"]


def exploration(rewards, groups=GROUPS, iteration=6):
    """rewards: one row of candidates a group."""
    total = torch.as_tensor(rewards, dtype=torch.float32).flatten()
    ok = total.isfinite()
    table = RewardTable({"r": total}, {}, total, ok, [None if good else "failed" for good in ok])
    batch = PromptBatch([Prompt(str(group)) for group in groups], groups, iteration)
    return Exploration(batch, plan_forest(len(groups), ROOTS, BRANCHING), table)


def random_rewards(seed=0, kind="distinct"):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(len(GROUPS), EACH, generator=generator)
    if kind == "ties":
        rewards = rewards.round()
    if kind == "flat":
        rewards = torch.full_like(rewards, 0.3)
    if kind == "failures":
        rewards[torch.rand(rewards.shape, generator=generator) < 0.5] = math.nan
    return rewards


def by_prompt(chosen):
    """Per prompt: (row among its candidates, reason, audited)."""
    groups = [[] for _ in GROUPS]
    for sample, reason, audit in zip(chosen.samples.tolist(), chosen.reason, chosen.audit.tolist(), strict=True):
        groups[sample // EACH].append((sample % EACH, reason, audit))
    return groups


@pytest.mark.parametrize("kind", ["distinct", "ties", "flat", "failures"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("keep", "audit"), [(2, 0), (5, 1), (7, 3), (16, 2), (17, 5), (18, 1)])
def test_each_prompt_gets_its_number_and_each_candidate_is_taken_once(method, keep, audit, kind):
    chosen = choose(exploration(random_rewards(keep, kind)), method, keep, audit, seed=1)
    samples = chosen.samples.tolist()
    assert chosen.samples.dtype == torch.int64 and chosen.audit.dtype == torch.bool
    assert all(a < b for a, b in zip(samples, samples[1:], strict=False))
    assert len(samples) == len(chosen.reason) == len(chosen.audit)
    for found in by_prompt(chosen):
        assert sum(not audited for _, _, audited in found) == keep
        assert sum(audited for _, _, audited in found) == min(audit, EACH - keep)
        assert all((reason == "audit") == audited for _, reason, audited in found)


def test_all_keeps_everything():
    chosen = choose(exploration(random_rewards()), "all", EACH, 0, seed=1)
    assert chosen.samples.tolist() == list(range(5 * EACH))
    assert set(chosen.reason) == {"all"} and not chosen.audit.any()


def test_contrast_takes_both_sides_of_the_widest_split():
    rewards = torch.zeros(5, EACH)
    for prompt in range(5):  # below one node, all in the prompt's own second tree
        first = 6 + 3 * (prompt % 2)
        rewards[prompt, first], rewards[prompt, first + 2] = 1.0, -1.0
    chosen = by_prompt(choose(exploration(rewards), "sibling_contrast", 2, 1, seed=1))
    for prompt, found in enumerate(chosen):
        first = 6 + 3 * (prompt % 2)
        kept = {row: reason for row, reason, audited in found if not audited}
        assert set(kept) == {first, first + 2}
        assert "gap 2, better side" in kept[first] and "gap 2, worse side" in kept[first + 2]


def test_failed_candidates_are_only_taken_for_want_of_others():
    rewards = torch.full((5, EACH), math.nan)
    rewards[:, 3:7] = torch.tensor([0.1, 0.4, 0.2, 0.3])
    for found in by_prompt(choose(exploration(rewards), "best_worst", 6, 0, seed=1)):
        assert {row for row, reason, _ in found if reason != "unscored"} == {3, 4, 5, 6}
        assert [row for row, reason, _ in found if reason == "unscored"] == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_ranks_do_not_matter(method):
    """Reasons name nodes of the rank's own forest; nothing else may change."""
    rewards = random_rewards(5)
    whole = by_prompt(choose(exploration(rewards), method, 5, 2, seed=7))
    parts = [[3, 4], [1], [2, 0]]
    for rows in parts:
        groups = tuple(GROUPS[row] for row in rows)
        chosen = choose(exploration(rewards[rows], groups), method, 5, 2, seed=7)
        for place, row in enumerate(rows):
            mine = [
                (int(sample) % EACH, re.sub(r"node \d+", "node", reason), bool(audit))
                for sample, reason, audit in zip(chosen.samples, chosen.reason, chosen.audit, strict=True)
                if int(sample) // EACH == place
            ]
            theirs = [(sample, re.sub(r"node \d+", "node", reason), audit) for sample, reason, audit in whole[row]]
            assert mine == theirs


@pytest.mark.parametrize("method", ["best_worst", "random"])
def test_random_draws_are_keyed_by_seed_iteration_and_group(method):
    rewards = random_rewards(1)

    def audited(seed=1, iteration=6, groups=GROUPS):
        chosen = choose(exploration(rewards, groups, iteration), method, 3, 3, seed)
        return [[row for row, _, audit in found if audit] for found in by_prompt(chosen)]

    assert audited() == audited()
    for other in (audited(seed=2), audited(iteration=7), audited(groups=(5, 18, 2, 12, 30))):
        assert sum(a != b for a, b in zip(audited(), other, strict=True)) >= 4
    assert len({tuple(rows) for rows in audited()}) >= 4  # groups differ from each other


def test_the_audit_is_uniform_over_the_rest():
    """900 draws of 1 of 13: each about 69 times, 4 standard deviations of it 32."""
    rewards = torch.arange(EACH).float().expand(5, EACH)
    counts = torch.zeros(EACH)
    for iteration in range(180):
        chosen = choose(exploration(rewards, iteration=iteration), "best_worst", 5, 1, seed=0)
        counts += torch.bincount(chosen.samples[chosen.audit] % EACH, minlength=EACH)
    assert counts.sum() == 900
    assert counts[[0, 1, 15, 16, 17]].sum() == 0
    assert (counts[2:15] - 900 / 13).abs().max() < 32
