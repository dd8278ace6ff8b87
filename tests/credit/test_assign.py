"""Credit of steps and samples against the definitions, walked node by node."""

import itertools
import math
import statistics

import pytest
import torch

from diffrl.credit.assign import CreditRule, assign_credit, kept_edges
from diffrl.functional.tree_values import step_rewards
from diffrl.functional.turning_points import turning_point_rewards
from diffrl.records import Forest
from diffrl.rollout.tree import plan_forest, subset

NAN = math.nan
REWARDS = ["outcome", "fused", "incremental", "turning_point"]
RULES = [
    (reward, how)
    for reward in REWARDS
    for how in ("group", "depth", "siblings")
    if reward != "outcome" or how == "group"
]


def drawn(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def whole_forest(seed=0):
    """Two prompts, two roots each, a split in two, a split in three, a lone step: 12 samples a prompt."""
    forest = plan_forest(2, 2, {0: 2, 1: 3, 4: 1})
    usable = torch.ones(24, dtype=torch.bool)
    usable[[1, 6, 7, 8, 20]] = False  # 6, 7 and 8 are all that grows from one child of the first split
    reward = drawn(24, seed)
    reward[[1, 6]] = NAN
    return forest, reward, usable


def part_of_a_forest(seed=0):
    """A subset, in which some nodes at a split have one child."""
    forest, reward, usable = whole_forest(seed)
    samples = torch.tensor([0, 1, 3, 4, 6, 9, 10, 11, 12, 13, 16, 17, 20, 23])
    return subset(forest, samples), reward[samples], usable[samples]


def late_forest(seed=0):
    """Lone steps before the splits and between them."""
    forest = plan_forest(2, 2, {0: 1, 1: 2, 3: 1, 4: 3})
    return forest, *whole_forest(seed)[1:]


def chain_forest(seed=0):
    forest = plan_forest(3, 5, {0: 1, 2: 1, 3: 1})
    usable = torch.ones(15, dtype=torch.bool)
    usable[7] = False
    return forest, drawn(15, seed), usable


FORESTS = {"whole": whole_forest, "late": late_forest, "part": part_of_a_forest, "chains": chain_forest}


class Naive:
    """The definitions over lists, one node at a time."""

    def __init__(self, forest: Forest, reward, usable, weight=None, values=None):
        self.parent, self.prompt, self.step = (c.tolist() for c in (forest.parent, forest.prompt, forest.step))
        self.nodes = range(len(self.parent))
        self.reward, self.samples = reward.tolist(), forest.sample_prompt.tolist()
        self.good = [bool(u) and math.isfinite(r) for u, r in zip(usable, self.reward, strict=True)]
        self.leaf = forest.leaf.tolist()
        self.weight = weight or [1.0] * len(self.reward)
        self.fused = [self.mean(n, self.reward) for n in self.nodes]
        self.by_leaves = values is None
        self.values = list(self.fused) if values is None else values.tolist()
        for i, leaf in enumerate(self.leaf):
            self.values[leaf] = self.reward[i] if self.good[i] else NAN

    def path(self, node):
        return [*self.path(self.parent[node]), node] if node >= 0 else []

    def mean(self, node, amount):
        below = [i for i in range(len(amount)) if self.good[i] and node in self.path(self.leaf[i])]
        total = sum(self.weight[i] for i in below)
        return sum(self.weight[i] * amount[i] for i in below) / total if below else NAN

    def outcome(self, spread=None):
        found = []
        for i, prompt in enumerate(self.samples):
            peers = [r for r, p, g in zip(self.reward, self.samples, self.good, strict=True) if p == prompt and g]
            scale = (spread or statistics.pstdev(peers)) + 1e-4
            found.append((self.reward[i] - statistics.fmean(peers)) / scale if self.good[i] else 0.0)
        return found

    def step_reward(self, kind, turning):
        if kind == "fused":
            return self.fused
        if kind == "turning_point":
            return turning
        return [self.values[n] - self.values[self.parent[n]] for n in self.nodes]

    def families(self, node):
        siblings = [m for m in self.nodes if self.parent[m] == self.parent[node]]
        return sum(math.isfinite(self.fused[m]) for m in siblings)

    def advantage(self, kind, how, turning=None):
        if kind == "outcome":
            outcome = self.outcome()
            found = [self.mean(n, outcome) for n in self.nodes]
            return [0.0 if self.parent[n] < 0 or math.isnan(found[n]) else found[n] for n in self.nodes]
        r = self.step_reward(kind, turning)
        live = [self.parent[n] >= 0 and math.isfinite(r[n]) and math.isfinite(self.fused[n]) for n in self.nodes]
        if kind != "fused" and self.by_leaves:  # a lone child adds nothing to the value, and so is left out
            live = [live[n] and self.families(n) > 1 for n in self.nodes]
        found = []
        for n in self.nodes:
            same = [m for m in self.nodes if live[m] and self.prompt[m] == self.prompt[n]]
            peers = [r[m] for m in same if how == "group" or self.step[m] == self.step[n]]
            if not live[n] or min(peers) == max(peers):
                found.append(0.0)
                continue
            centre = statistics.fmean(peers)
            if how == "siblings":
                centre = self.fused[self.parent[n]] if kind == "fused" else 0.0
            found.append(max(-5.0, min(5.0, (r[n] - centre) / (statistics.pstdev(peers) + 1e-4))))
        return found


def close(result, expected):
    torch.testing.assert_close(result, torch.tensor(expected), rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", FORESTS)
@pytest.mark.parametrize(("reward", "how"), RULES)
def test_every_rule_equals_its_definition(shape, reward, how):
    forest, total, usable = FORESTS[shape]()
    naive = Naive(forest, total, usable)
    turning = None
    if reward == "turning_point":  # its own test has the oracle
        leaf_reward = torch.full((len(forest.parent),), NAN)
        leaf_reward[forest.leaf] = total.where(usable, NAN)
        points = turning_point_rewards(torch.tensor(naive.values), leaf_reward, forest.parent, group=forest.prompt)
        turning = points.rewards.tolist()
    credit = assign_credit(forest, total, usable, CreditRule(reward, normalise=how))
    close(credit.advantage, naive.advantage(reward, how, turning))
    close(credit.outcome, naive.outcome())
    close(credit.values, naive.fused)
    assert credit.used.tolist() == naive.good
    assert credit.advantage.dtype == credit.outcome.dtype == torch.float32
    assert (credit.zero_spread_groups, credit.dropped_groups) == (0, 0)
    if reward == "turning_point":
        assert torch.equal(credit.turning, points.replaced) and (shape != "whole" or bool(credit.turning.any()))
    else:
        assert not bool(credit.turning.any())


@pytest.mark.parametrize("std", ["group", "batch"])
def test_on_chains_every_step_has_its_samples_advantage(std):
    forest, total, usable = chain_forest()
    credit = assign_credit(forest, total, usable, CreditRule("outcome", std=std))
    spread = statistics.pstdev(total[usable].tolist()) if std == "batch" else None
    close(credit.outcome, Naive(forest, total, usable).outcome(spread))
    assert torch.equal(credit.advantage.reshape(4, 15)[1:], credit.outcome.expand(3, 15))
    assert credit.advantage[:15].tolist() == [0.0] * 15


def test_the_batch_std_is_that_of_all_ranks():
    forest, total, usable = chain_forest()
    others, good = torch.cat([total, 100 * drawn(7, 9)]), torch.cat([usable, torch.ones(7, dtype=torch.bool)])
    credit = assign_credit(forest, total, usable, CreditRule("outcome", std="batch"), batch=(others, good))
    close(credit.outcome, Naive(forest, total, usable).outcome(statistics.pstdev(others[good].tolist())))


@pytest.mark.parametrize("how", ["group", "depth", "siblings"])
@pytest.mark.parametrize("shape", FORESTS)
def test_values_of_another_estimator(shape, how):
    forest, total, usable = FORESTS[shape]()
    values = drawn(len(forest.parent), 3)
    values[-20] = NAN
    naive = Naive(forest, total, usable, values=values)
    credit = assign_credit(forest, total, usable, CreditRule("incremental", normalise=how), values=values)
    close(credit.advantage, naive.advantage("incremental", how))
    close(credit.values, naive.values)


def test_turning_points_follow_another_estimator_and_are_balanced_by_prompt():
    forest, total, usable = chain_forest()
    values = drawn(len(forest.parent), 3)
    leaf_reward = torch.full((len(forest.parent),), NAN)
    leaf_reward[forest.leaf] = total.where(usable, NAN)
    worth = values.clone()
    worth[forest.leaf] = leaf_reward[forest.leaf]
    for constraint, balance in itertools.product([True, False], repeat=2):
        rule = CreditRule("turning_point", normalise="depth", constraint=constraint, balance=balance)
        points = turning_point_rewards(worth, leaf_reward, forest.parent, constraint, balance, None, forest.prompt)
        credit = assign_credit(forest, total, usable, rule, values=values)
        assert torch.equal(credit.turning, points.replaced) and bool(credit.turning.any())
        close(
            credit.advantage,
            Naive(forest, total, usable, values=values).advantage("turning_point", "depth", points.rewards.tolist()),
        )


@pytest.mark.parametrize("reward", ["outcome", "fused", "incremental"])
def test_likely_paths_weigh_more(reward):
    forest, total, usable = whole_forest()
    log_prob = drawn(len(forest.parent), 5)
    log_prob[forest.parent < 0] = 0.0
    plain = Naive(forest, total, usable)
    weight = [math.exp(0.7 * sum(float(log_prob[n]) for n in plain.path(leaf))) for leaf in plain.leaf]
    naive = Naive(forest, total, usable, weight)
    rule = CreditRule(reward, fusion="path_probability", beta=0.7)
    credit = assign_credit(forest, total, usable, rule, log_prob=log_prob)
    close(credit.advantage, naive.advantage(reward, "group"))
    close(credit.values, naive.fused)


@pytest.mark.parametrize(("reward", "how"), RULES)
def test_dropped_and_flat_groups_train_nothing_and_are_counted(reward, how):
    forest, total, usable = whole_forest()
    total[12:], usable[12:] = 0.1, True
    usable[1:12] = False
    fused = [{}, {"fusion": "path_probability", "beta": 0.7}]
    for options, log_prob in zip(fused, (None, drawn(len(forest.parent), 5)), strict=True):
        credit = assign_credit(forest, total, usable, CreditRule(reward, normalise=how, **options), log_prob=log_prob)
        assert (credit.zero_spread_groups, credit.dropped_groups) == (1, 1)
        assert not bool(credit.advantage.any()) and not bool(credit.outcome.any()) and not bool(credit.turning.any())
        assert credit.used.tolist() == [False] * 12 + [True] * 12


@pytest.mark.parametrize("reward", ["incremental", "turning_point"])
def test_the_minimum_counts_a_prompts_samples(reward):
    forest, total, usable = whole_forest()
    enough = assign_credit(forest, total, usable, CreditRule(reward, minimum=8))  # 8 and 11 usable
    fewer = assign_credit(forest, total, usable, CreditRule(reward, minimum=9))
    assert (enough.dropped_groups, fewer.dropped_groups) == (0, 1)
    first = forest.prompt == 0
    assert bool(enough.advantage[first].any()) and not bool(fewer.advantage[first].any())
    assert not bool(fewer.turning[first].any())
    assert torch.equal(enough.advantage[~first], fewer.advantage[~first])


@pytest.mark.parametrize("reward", ["incremental", "turning_point"])
def test_another_estimators_steps_keep_their_credit_in_a_group_without_spread(reward):
    forest, total, usable = chain_forest()
    total[:5] = 0.5
    usable[10:14] = False
    credit = assign_credit(forest, total, usable, CreditRule(reward), values=drawn(len(forest.parent), 3))
    assert (credit.zero_spread_groups, credit.dropped_groups) == (1, 1)
    steps = credit.advantage.reshape(4, 15)[1:]
    assert bool(steps[:, :5].any()) and not bool(steps[:, 10:].any())
    assert not bool(credit.outcome[:5].any())


def test_steps_towards_unusable_samples_alone_get_nothing():
    forest, total, usable = whole_forest()
    dead = forest.parent[forest.parent[forest.leaf[6]]]
    usable[torch.tensor([dead in Naive(forest, total, usable).path(leaf) for leaf in forest.leaf.tolist()])] = False
    for reward, how in RULES:
        values = drawn(len(forest.parent), 1) if reward in ("incremental", "turning_point") else None
        credit = assign_credit(forest, total, usable, CreditRule(reward, normalise=how), values=values)
        assert credit.advantage[dead] == 0.0 and credit.advantage[forest.leaf[6]] == 0.0


@pytest.mark.parametrize(("reward", "how"), [("outcome", "group"), ("fused", "depth"), ("incremental", "group")])
def test_the_median_absolute_deviation_reaches_samples_and_steps(reward, how):
    """Each advantage is its own centre and spread; the spread of a prompt's samples is their MAD about the median."""
    forest, total, usable = whole_forest()
    found = assign_credit(forest, total, usable, CreditRule(reward, normalise=how, baseline="median", std="mad"))
    for prompt in (0, 1):
        own = (forest.sample_prompt == prompt) & usable & total.isfinite()
        peers = total[own].tolist()
        centre = statistics.median(peers)
        spread = statistics.median([abs(one - centre) for one in peers]) + 1e-4
        close(found.outcome[own], [max(-5.0, min(5.0, (one - centre) / spread)) for one in peers])
    steps = found.detail.spread.isfinite()
    assert bool(steps.any()) == (reward != "outcome")
    quotient = (found.step_reward - found.detail.centre) / found.detail.spread
    close(found.advantage[steps], quotient.clamp(-5, 5)[steps].tolist())
    nodes = [n for n in range(len(forest.parent)) if steps[n]]
    for n in nodes:
        same = [
            m for m in nodes
            if forest.prompt[m] == forest.prompt[n] and (how == "group" or forest.step[m] == forest.step[n])
        ]  # fmt: skip
        peers = found.step_reward[same].tolist()
        spread = statistics.median([abs(one - statistics.median(peers)) for one in peers]) + 1e-4
        assert float(found.detail.spread[n]) == pytest.approx(spread, rel=1e-4)


def test_a_prompt_of_which_most_samples_are_alike_is_counted_by_the_mad():
    forest = plan_forest(2, 5, {0: 1})
    total = torch.tensor([1.0, 1, 1, 0, 5, 0, 1, 2, 3, 4])
    usable = torch.ones(10, dtype=torch.bool)
    by_mad = assign_credit(forest, total, usable, CreditRule("outcome", baseline="median", std="mad"))
    by_std = assign_credit(forest, total, usable, CreditRule("outcome", baseline="median"))
    assert (by_mad.zero_spread_groups, by_std.zero_spread_groups) == (1, 0)
    assert by_mad.outcome[:5].tolist() == [0.0] * 5 and bool(by_mad.used.all())
    assert by_mad.outcome[5:].tolist() == pytest.approx([-2, -1, 0, 1, 2], rel=1e-3)


def test_options_that_exclude_each_other_are_refused():
    for message, options in {
        "normalise must": {"reward": "outcome", "normalise": "depth"},
        "std 'batch' goes with": {"reward": "fused", "std": "batch"},
        "std 'mad' goes with": {"reward": "fused", "std": "mad"},
        "and without normalise": {"reward": "fused", "normalise": "siblings", "baseline": "median", "std": "mad"},
        "beta must": {"reward": "fused", "beta": 1.0},
    }.items():
        with pytest.raises(ValueError, match=message):
            CreditRule(**options)
    forest, total, usable = chain_forest()
    with pytest.raises(ValueError, match="values go with"):
        assign_credit(forest, total, usable, CreditRule("fused"), values=drawn(60, 0))
    with pytest.raises(ValueError, match="log_prob goes with"):
        assign_credit(forest, total, usable, CreditRule("fused", "path_probability", 1.0))
    with pytest.raises(ValueError, match="log_prob goes with"):
        assign_credit(forest, total, usable, CreditRule("fused"), log_prob=drawn(60, 0))


def split_forest():
    """One prompt, two roots; a split in two at step 1, in two at step 3, a lone step 5: 8 samples; rows by level."""
    return plan_forest(1, 2, {1: 2, 3: 2, 5: 1}), torch.ones(8, dtype=torch.bool)


def test_without_pruning_every_step_trains():
    forest, usable = split_forest()
    assert torch.equal(kept_edges(forest, drawn(8, 0), usable), forest.parent >= 0)


def test_parent_top1_drops_the_worse_siblings_and_what_grows_from_them():
    forest, usable = split_forest()
    reward = torch.tensor([1.0, 2.0, 5.0, 4.0, 3.0, 3.0, NAN, -1.0])
    kept = kept_edges(forest, reward, usable, width="parent_top1")
    levels = [kept[forest.step == step].tolist() for step in (-1, 1, 3, 5)]
    better = [False, True, True, False, True, False, False, True]  # of equals the first; a failed one is never better
    assert levels == [[False] * 2, [True] * 4, better, better]


def test_parent_top1_compares_fused_values_at_the_last_split():
    forest = plan_forest(1, 1, {0: 2, 2: 1})
    part = subset(plan_forest(1, 1, {0: 2, 1: 3, 2: 1}), torch.tensor([0, 1, 5]))
    usable = torch.ones(3, dtype=torch.bool)
    assert kept_edges(forest, torch.tensor([1.0, 2.0]), usable[:2], width="parent_top1").tolist() == [
        *[False, False, True],
        *[False, True],
    ]
    # A lone child at the last split stays, whatever it is worth.
    kept = kept_edges(part, torch.tensor([1.0, 2.0, -5.0]), usable, width="parent_top1")
    assert kept[part.step == 1].tolist() == kept[part.step == 2].tolist() == [False, True, True]
    chains = plan_forest(1, 3, {0: 1})
    assert kept_edges(chains, drawn(3, 0), usable, width="parent_top1").tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("best", [1, 2, 20])
def test_extremes_keep_the_paths_to_the_best_and_the_worst_of_each_prompt(best):
    forest, reward, usable = whole_forest(4)
    naive = Naive(forest, reward, usable)
    expected = set()
    for prompt in range(2):
        ranked = sorted(
            (i for i in range(24) if naive.good[i] and naive.samples[i] == prompt), key=reward.tolist().__getitem__
        )
        for i in {*ranked[:best], *ranked[-best:]}:
            expected |= set(naive.path(naive.leaf[i])[1:])
    kept = kept_edges(forest, reward, usable, width="extremes", best=best)
    assert set(torch.nonzero(kept).flatten().tolist()) == expected


def test_extremes_of_equal_rewards_are_different_samples():
    forest, usable = split_forest()
    kept = kept_edges(forest, torch.full((8,), 0.3), usable, width="extremes", best=3)
    assert int(kept[forest.leaf].sum()) == 6


def test_skipped_steps_join_the_other_pruning():
    forest, usable = split_forest()
    kept = kept_edges(forest, drawn(8, 0), usable, skipped_steps={3, 9})
    assert torch.equal(kept, (forest.parent >= 0) & (forest.step != 3))
    both = kept_edges(forest, drawn(8, 0), usable, width="parent_top1", skipped_steps=[3])
    assert torch.equal(both, kept & kept_edges(forest, drawn(8, 0), usable, width="parent_top1"))
    with pytest.raises(ValueError, match="best must"):
        kept_edges(forest, drawn(8, 0), usable, width="extremes", best=0)


def test_finished_advantages_are_not_normalised_again():
    forest, total, usable = whole_forest()
    finished = drawn(len(total), 9)
    credit = assign_credit(forest, total, usable, CreditRule("outcome"), finished=finished)
    good = usable & total.isfinite()
    assert torch.equal(credit.outcome, finished.where(good, 0.0))
    close(credit.advantage, [
        0.0 if math.isnan(mean) or parent < 0 else mean
        for mean, parent in zip(
            [Naive(forest, total, usable).mean(n, finished.tolist()) for n in range(len(forest.parent))],
            forest.parent.tolist(), strict=True,
        )
    ])  # fmt: skip


@pytest.mark.parametrize("shape", FORESTS)
@pytest.mark.parametrize(("reward", "how"), RULES)
def test_the_detail_gives_back_the_advantages(shape, reward, how):
    """What viewers show as a sum is the sum: (reward - centre) / spread, cut; and nothing where there is none."""
    forest, total, usable = FORESTS[shape]()
    credit = assign_credit(forest, total, usable, CreditRule(reward, normalise=how, clamp=1.1))
    detail = credit.detail
    for value, centre, spread, advantage in (
        (credit.step_reward, detail.centre, detail.spread, credit.advantage),
        (total, detail.sample_centre, detail.sample_spread, credit.outcome),
    ):
        known = spread.isfinite()
        assert torch.equal(known, centre.isfinite()) and not known[advantage.isnan()].any()
        close(((value - centre) / spread).clamp(-1.1, 1.1)[known], advantage[known].tolist())
        if reward != "outcome" or advantage is credit.outcome:
            assert not advantage[~known].any()
    assert bool(detail.spread.isfinite().any()) >= (reward != "outcome" and bool(credit.advantage.any()))
    assert reward != "outcome" or not detail.spread.isfinite().any()


def test_the_detail_names_the_paths_that_turn_and_what_balancing_dropped():
    forest, total, usable = whole_forest(3)
    for balance in (True, False):
        credit = assign_credit(forest, total, usable, CreditRule("turning_point", constraint=False, balance=balance))
        detail, step = credit.detail, step_rewards(credit.values, forest.parent)
        turned = torch.zeros_like(credit.turning)
        turned[detail.turn_node[detail.turn_kept]] = True
        assert torch.equal(turned, credit.turning) and bool(detail.turn_kept.all()) != balance
        kept = list(
            zip(detail.turn_node[detail.turn_kept].tolist(), detail.turn_leaf[detail.turn_kept].tolist(), strict=True)
        )
        for node in torch.nonzero(credit.turning).flatten().tolist():
            good = Naive(forest, total, usable)
            leaves = [leaf for i, leaf in enumerate(good.leaf) if good.good[i] and node in good.path(leaf)]
            ends = [
                credit.values[leaf] - credit.values[forest.parent[node]] if (node, leaf) in kept else step[node]
                for leaf in leaves
            ]
            close(credit.step_reward[node], float(torch.stack(ends).mean()))
