"""The selections against brute force over subsets, a naive walk over pairs of leaves, and trees small enough to see."""

import math
import random
from itertools import combinations, permutations
from statistics import pvariance

import pytest
import torch

from diffrl.functional.selection import (
    best_worst,
    family_contrast,
    largest,
    max_variance,
    quantise,
    random_choice,
    select_all,
    sibling_contrast,
)

NAN = math.nan

# Two roots; 0 splits into 2 and 3, 3 into 4 and 5; 1 splits into 6, 7 and 8, and 6 has one child, 9.
PARENT = torch.tensor([-1, -1, 0, 0, 3, 3, 1, 1, 1, 6])
LEAF = torch.tensor([2, 4, 5, 9, 7, 8])


def random_tree(seed, candidates=13, nodes=29):
    """A random forest; the candidates sit on different nodes, some above others."""
    rng = random.Random(seed)
    parent = [-1, -1] + [rng.choice([rng.randrange(i), max(0, i - 3)]) for i in range(2, nodes)]
    return torch.tensor(parent), torch.tensor(rng.sample(range(nodes), candidates))


def rewards_of(seed, count, kind):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(count, generator=generator)
    if kind == "ties":
        rewards = (2 * rewards).round()
    if kind == "gaps":
        rewards[torch.rand(count, generator=generator) < 0.5] = NAN
    return torch.full((count,), 0.3) if kind == "flat" else rewards


RULES = {
    "best_worst": lambda rewards, keep: best_worst(rewards, keep),
    "max_variance": lambda rewards, keep: max_variance(rewards, keep),
    "sibling_contrast": lambda rewards, keep: sibling_contrast(rewards, keep, *random_tree(keep, len(rewards))),
    "family_contrast": lambda rewards, keep: family_contrast(rewards, keep, *random_tree(keep, len(rewards))),
    "random": lambda rewards, keep: random_choice(
        rewards, keep, torch.randperm(len(rewards), generator=torch.Generator().manual_seed(keep))
    ),
}


# --- what every rule promises -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["distinct", "ties", "flat", "gaps"])
@pytest.mark.parametrize("rule", RULES)
def test_exactly_keep_different_candidates_and_failed_ones_last(rule, kind):
    for keep in range(1, 14):
        rewards = rewards_of(keep, 13, kind)
        indices, reason = RULES[rule](rewards, keep)
        chosen = indices.tolist()
        assert indices.dtype == torch.int64 and len(set(chosen)) == len(chosen) == len(reason) == keep
        failed = rewards.isnan()[indices].tolist()
        assert sum(failed) == max(0, keep - int((~rewards.isnan()).sum()))
        assert failed == sorted(failed) and [why == "unscored" for why in reason] == failed
        if rule != "random":
            unscored = [i for i in chosen if math.isnan(rewards[i])]
            assert unscored == sorted(unscored)


@pytest.mark.parametrize("rule", RULES)
def test_all_unscored_and_infinite_rewards(rule):
    assert RULES[rule](torch.full((5,), NAN), 3).reason == ("unscored",) * 3
    mixed = torch.tensor([math.inf, 0.1, -math.inf, 0.5, NAN])
    indices, reason = RULES[rule](mixed, 3)
    assert set(indices[:2].tolist()) == {1, 3} and int(indices[2]) == 0 and reason[2] == "unscored"


@pytest.mark.parametrize("rule", RULES)
def test_refuses_wrong_arguments(rule):
    for keep in (0, -1, 6):
        with pytest.raises(ValueError, match=r"keep must be in \[1, N\]"):
            RULES[rule](torch.zeros(5), keep)
    with pytest.raises(ValueError, match=r"rewards must be \(N,\)"):
        RULES[rule](torch.zeros(5, 1), 3)
    with pytest.raises(ValueError, match=r"keep must be in \[1, N\]"):
        select_all(torch.zeros(0))


# --- best and worst, largest variance ---------------------------------------------------------------------------------


def test_best_worst_takes_from_both_ends_and_says_which():
    rewards = torch.tensor([0.2, 0.9, NAN, -0.4, 0.5, 0.7, 0.0])
    indices, reason = best_worst(rewards, 5)
    assert indices.tolist() == [1, 5, 4, 3, 6]
    assert reason == ("best 1", "best 2", "best 3", "worst 1", "worst 2")
    assert best_worst(rewards, 4).indices.tolist() == [1, 5, 3, 6]
    assert best_worst(rewards, 1).reason == ("best 1",)
    assert best_worst(rewards, 7).reason[-2:] == ("worst 3", "unscored")


def test_among_equals_the_lower_index_is_better():
    assert best_worst(torch.ones(7), 4).indices.tolist() == [0, 1, 6, 5]
    assert best_worst(torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]), 4).indices.tolist() == [1, 3, 4, 2]
    # A sort that is not stable shows in long rows only.
    many = torch.randint(3, (97,), generator=torch.Generator().manual_seed(0)).float()
    assert best_worst(many, 96).indices[:48].tolist() == sorted(range(97), key=lambda i: (-many[i], i))[:48]


@pytest.mark.parametrize("kind", ["distinct", "ties", "skewed", "shifted"])
@pytest.mark.parametrize("seed", range(3))
def test_max_variance_beats_every_subset(seed, kind):
    rewards = rewards_of(seed, 11, kind).double()
    rewards = {"skewed": rewards.exp() ** 2, "shifted": 0.01 * rewards + 1000}.get(kind, rewards)
    values = rewards.tolist()
    for keep in range(2, 12):
        indices, reason = max_variance(rewards, keep)
        largest = max(pvariance(subset) for subset in combinations(values, keep))
        kept = pvariance([values[i] for i in indices.tolist()])
        assert kept == pytest.approx(largest, rel=1e-3)  # rewards are rounded before
        best = sum(why.startswith("best") for why in reason)
        by_reward = sorted(range(11), key=lambda i: (-values[i], i))
        assert indices.tolist() == by_reward[:best] + by_reward[::-1][: keep - best]


# --- sibling contrast -------------------------------------------------------------------------------------------------


def path_to_root(node, parent):
    path = [node]
    while parent[path[-1]] >= 0:
        path.append(parent[path[-1]])
    return path[::-1]


def naive_walk(rewards, keep, parent, leaf):
    """Every ordered pair of candidates whose paths part at a common node; the widest pair of each node."""
    paths = [path_to_root(node, parent) for node in leaf]
    widest = {}
    for a, b in permutations(range(len(rewards)), 2):
        common = [u for u, w in zip(paths[a], paths[b], strict=False) if u == w]
        if common and len(common) < min(len(paths[a]), len(paths[b])):
            gap = rewards[a] - rewards[b]
            widest[common[-1]] = max(widest.get(common[-1], (-math.inf,)), (gap, a, b))
    chosen = []
    for _, a, b in sorted(widest.values(), reverse=True):
        new = [i for i in (a, b) if i not in chosen]
        if len(chosen) + len(new) > keep:
            mean = sum(rewards) / len(rewards)
            new = [max(new, key=lambda i: abs(rewards[i] - mean))] if len(chosen) < keep else []
        chosen += new
    rest = sorted(set(range(len(rewards))) - set(chosen), key=lambda i: -rewards[i])
    for turn in range(keep - len(chosen)):
        chosen.append(rest.pop(0) if turn % 2 == 0 else rest.pop())
    return chosen


@pytest.mark.parametrize("seed", range(9))
def test_sibling_contrast_equals_the_naive_walk(seed):
    parent, leaf = random_tree(seed)
    rewards = rewards_of(seed, 13, "distinct").double()
    for keep in range(1, 14):
        got = sibling_contrast(rewards, keep, parent, leaf)
        assert got.indices.tolist() == naive_walk(rewards.tolist(), keep, parent.tolist(), leaf.tolist())


def test_sibling_contrast_takes_the_widest_splits_first():
    # Gaps: node 0 (candidate 0 against 1 and 2) 0.7 - 0.2, node 3 (1, 2) 0.4, node 1 (3, 4, 5) 0.9 - 0.3.
    rewards = torch.tensor([0.7, 0.6, 0.2, 0.9, 0.3, 0.8])
    indices, reason = sibling_contrast(rewards, 6, PARENT, LEAF)
    assert indices.tolist() == [3, 4, 0, 2, 1, 5]
    assert reason == (
        "split at node 1: gap 0.6, better side",
        "split at node 1: gap 0.6, worse side",
        "split at node 0: gap 0.5, better side",
        "split at node 0: gap 0.5, worse side",
        "split at node 3: gap 0.4, better side",
        "fill: best 2",
    )


def test_a_failed_sibling_makes_no_pair():
    rewards = torch.tensor([0.7, NAN, 0.2, 0.9, NAN, NAN])
    indices, reason = sibling_contrast(rewards, 4, PARENT, LEAF)
    assert indices.tolist() == [0, 2, 3, 1]
    assert reason[0] == "split at node 0: gap 0.5, better side" and reason[2:] == ("fill: best 1", "unscored")


# --- whole families ---------------------------------------------------------------------------------------------------


def forest_of(seed, trees=3, top=3, last=4):
    """Trees that split twice, and rewards with effects of both splits; leaves of one family side by side."""
    generator = torch.Generator().manual_seed(seed)
    parent, leaf = [], []
    for _ in range(trees):
        root = len(parent)
        parent.append(-1)
        for _ in range(top):
            node = len(parent)
            parent.append(root)
            leaf += range(len(parent), len(parent) + last)
            parent += [node] * last
    effects = torch.randn(len(parent), generator=generator)
    path = torch.stack([effects[path_to_root(node, parent)].sum() for node in leaf])
    return path.double(), torch.tensor(parent), torch.tensor(leaf)


@pytest.mark.parametrize("seed", range(4))
def test_families_are_kept_whole_in_the_order_of_gaps(seed):
    """By arrays: means of families and of trees, whose gaps are ranked together."""
    rewards, parent, leaf = forest_of(seed)
    table = rewards.view(3, 3, 4)
    means = table.mean(2)
    gaps = [("family", (t, f), float(table[t, f].max() - table[t, f].min())) for t in range(3) for f in range(3)]
    gaps += [("tree", (t, None), float(means[t].max() - means[t].min())) for t in range(3)]
    for keep in range(4, 37, 4):
        kept = []
        for kind, (t, f), _ in sorted(gaps, key=lambda entry: -entry[2]):
            wanted = [(t, f)] if kind == "family" else [(t, int(means[t].argmax())), (t, int(means[t].argmin()))]
            new = [family for family in wanted if family not in kept]
            if len(kept) + len(new) <= keep // 4:
                kept += new
        indices, reason = family_contrast(rewards, keep, parent, leaf)
        assert [divmod(i // 4, 3) for i in indices.tolist()[::4]] == kept
        assert all(why.startswith("family") for why in reason)


def test_what_is_left_goes_to_both_ends_of_the_next_family():
    rewards, parent, leaf = forest_of(0)
    whole = family_contrast(rewards, 8, parent, leaf)
    indices, reason = family_contrast(rewards, 10, parent, leaf)
    assert indices.tolist()[:8] == whole.indices.tolist()
    best, worst = indices.tolist()[8:]
    family = range(best // 4 * 4, best // 4 * 4 + 4)
    assert worst in family and rewards[best] == rewards[family].max() and rewards[worst] == rewards[family].min()
    assert [why.rpartition(", ")[2] for why in reason[8:]] == ["best 1", "worst 1"]


def test_families_of_chains_and_of_failed_siblings():
    rewards = torch.tensor([0.2, 0.9, NAN, -0.4, 0.5])
    chains = family_contrast(rewards, 3, torch.full((5,), -1), torch.arange(5))
    assert chains.indices.tolist() == [1, 3, 4]
    failed = family_contrast(torch.tensor([0.7, NAN, 0.2, 0.9, NAN, NAN]), 2, PARENT, LEAF)
    assert failed.indices.tolist() == [0, 2] and failed.reason[0] == "family of node 0: gap 0.5"


def test_refuses_what_is_no_tree():
    rewards = torch.zeros(6)
    with pytest.raises(ValueError, match="leaf must be"):
        sibling_contrast(rewards, 2, PARENT, LEAF[:5])
    with pytest.raises(ValueError, match="must hold integers"):
        sibling_contrast(rewards, 2, PARENT.float(), LEAF)
    for leaf in (LEAF - 3, LEAF + 1):
        with pytest.raises(ValueError, match=r"leaf must name nodes in \[0, 10\)"):
            sibling_contrast(rewards, 2, PARENT, leaf)
    for parent in (PARENT - 1, torch.arange(10)):
        with pytest.raises(ValueError, match="parent must be -1 at roots"):
            sibling_contrast(rewards, 2, parent, LEAF)


# --- random and all ---------------------------------------------------------------------------------------------------


def test_random_choice_follows_the_order():
    rewards = torch.tensor([0.5, NAN, 0.1, 0.9, NAN])
    indices, reason = random_choice(rewards, 4, torch.tensor([1, 3, 2, 4, 0]))
    assert indices.tolist() == [3, 2, 0, 1] and reason == ("random", "random", "random", "unscored")
    for order in ([0, 1, 2, 3], [0, 1, 2, 3, 3], [1, 2, 3, 4, 5]):
        with pytest.raises(ValueError, match=r"permutation of 0\.\.4"):
            random_choice(rewards, 2, torch.tensor(order))


def test_the_largest_come_first_and_those_without_a_number_last():
    scores = torch.tensor([0.5, NAN, 0.1, 0.9, 0.5, 0.9 + 1e-9, math.inf], dtype=torch.float64)
    for keep, expected in enumerate(([3], [3, 5], [3, 5, 0], [3, 5, 0, 4], [3, 5, 0, 4, 2], [3, 5, 0, 4, 2, 1]), 1):
        assert largest(scores, keep).tolist() == expected
    with pytest.raises(ValueError, match=r"keep must be in \[1, N\]"):
        largest(scores, 8)


def test_select_all_keeps_the_order_and_the_failed():
    indices, reason = select_all(torch.tensor([0.5, NAN, 0.1]))
    assert indices.tolist() == [0, 1, 2] and reason == ("all", "all", "all")


BY_SCORE = {
    "best_worst": lambda rewards, keep: best_worst(rewards, keep),
    "max_variance": lambda rewards, keep: max_variance(rewards, keep),
    "sibling_contrast": lambda rewards, keep: sibling_contrast(rewards, keep, *pairs_of(len(rewards))),
}


def pairs_of(count):
    """Trees of a root and two leaves each: parents, and the leaf of each candidate."""
    roots = count // 2
    return torch.tensor([-1] * roots + [i // 2 for i in range(count)]), torch.arange(roots, roots + count)


@pytest.mark.parametrize("rule", BY_SCORE)
def test_a_few_units_in_the_last_place_choose_nothing(rule):
    """24 candidates, many of them equal, each off by up to 4 units: the same are kept, in the same order."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(50):
        # the middles of steps: what is perturbed beside an edge may fall to the other side
        rewards = torch.randint(1, 40, (24,), generator=generator).float() / 64 + 1
        ulps = torch.randint(-4, 5, (24,), generator=generator) * 2.0**-23
        assert BY_SCORE[rule](rewards, 8).indices.tolist() == BY_SCORE[rule](rewards + ulps, 8).indices.tolist()


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_quantising_keeps_the_order_of_scores_that_differ_in_earnest(shift):
    rewards = torch.tensor([0.001, 0.5, -3.0, math.nan, 0.6, 0.5]) + shift
    jitter = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1e-5])
    rounded = quantise(rewards + jitter)
    assert (rounded - (rewards + jitter).double()).abs().nan_to_num().max() <= max(3.6 * 2.0**-17, shift * 2.0**-20)
    assert rounded[4] > rounded[1] == rounded[5] > rounded[0] > rounded[2] and rounded[3].isnan()
