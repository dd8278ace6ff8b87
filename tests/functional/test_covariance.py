"""The covariance below a node against loops over pairs, numpy, and the distribution that the leaves are drawn from."""

import numpy as np
import pytest
import torch
from scipy import stats

from diffrl.functional.covariance import between_variance, sibling_covariance
from diffrl.functional.tree_values import fuse

SHAPE = (2, 3, 5)
NODE = torch.tensor([1, 0, 1, 1, 0, 1, 1, 3, 3, 1])
CHILD = torch.tensor([7, 4, 9, 7, 4, 8, 9, 2, 5, 7])
"""Four nodes: 1 has children with 3, 1 and 2 leaves; 0 a single child; 2 nothing; 3 two children with one leaf each."""


def leaves(seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(NODE), *SHAPE, generator=generator), torch.randn(len(NODE), generator=generator)


def test_equals_the_mean_over_pairs_of_different_children():
    x0, advantage = leaves()
    found = sibling_covariance(x0, advantage, NODE, CHILD, 4)
    for n in range(4):
        own = [leaf for leaf in range(len(NODE)) if NODE[leaf] == n]
        pairs = [(one, other) for one in own for other in own if CHILD[one] != CHILD[other]]
        products = [(advantage[i] - advantage[j]).double() * (x0[i] - x0[j]).double() / 2 for i, j in pairs]
        expected = sum(products) / len(pairs) if pairs else torch.zeros(SHAPE)
        torch.testing.assert_close(found.direction[n], expected.float(), rtol=1e-5, atol=1e-6)
        centre = x0[own].mean(0) if own else torch.zeros(SHAPE)
        torch.testing.assert_close(found.centre[n], centre, rtol=1e-5, atol=1e-6)


def test_with_one_leaf_a_child_it_is_the_textbook_covariance():
    x0, advantage = leaves()
    found = sibling_covariance(x0, advantage, torch.zeros_like(NODE), torch.arange(len(NODE)), 1).direction[0]
    flat, a = x0.flatten(1).numpy(), advantage.numpy()
    expected = [np.cov(flat[:, d], a, ddof=1)[0, 1] for d in range(flat.shape[1])]
    np.testing.assert_allclose(found.flatten().numpy(), expected, rtol=1e-4, atol=1e-6)


def test_it_is_unbiased_where_children_share_a_part_of_their_leaves():
    """Leaves are centre + step of the child + step of the leaf, rewards linear: the covariance is known."""
    trials, children, each = 20_000, 3, 2
    generator = np.random.default_rng(3)
    child, leaf = (
        generator.normal(0, 0.8, (trials, children, 1, 4)),
        generator.normal(0, 0.5, (trials, children, each, 4)),
    )
    slope = np.array([1.0, -0.5, 0.0, 2.0])
    x0 = 3.0 + child + leaf
    advantage = x0 @ slope
    truth = (0.8**2 + 0.5**2) * slope
    rows = torch.arange(trials * children).repeat_interleave(each)
    found = sibling_covariance(
        torch.tensor(x0.reshape(-1, 4)), torch.tensor(advantage.reshape(-1)), rows // children, rows, trials
    ).direction.double()
    error = found.std(0) / trials**0.5
    assert (abs(found.mean(0).numpy() - truth) < 4 * error.numpy()).all()
    flat = x0.reshape(trials, -1, 4)
    centred = advantage.reshape(trials, -1) - advantage.reshape(trials, -1).mean(1, keepdims=True)
    naive = (centred[..., None] * flat).sum(1) / (children * each - 1)
    assert abs(naive.mean(0) - truth)[3] > 20 * float(error[3])  # what m - 1 over all leaves would have given


def test_a_constant_changes_nothing_and_equal_advantages_are_exactly_nothing():
    x0, advantage = leaves()
    before = sibling_covariance(x0, advantage, NODE, CHILD, 4).direction
    torch.testing.assert_close(
        sibling_covariance(x0, advantage + 17, NODE, CHILD, 4).direction, before, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        sibling_covariance(x0 + 9, advantage, NODE, CHILD, 4).direction, before, rtol=1e-4, atol=1e-5
    )
    level = torch.where(NODE == 1, 0.1, advantage)
    found = sibling_covariance(1e3 * x0, level, NODE, CHILD, 4).direction
    assert (found[1] == 0).all() and (found[3] != 0).all()


@pytest.mark.parametrize("wrong", [{"node": NODE[:-1]}, {"advantage": torch.full((10,), torch.nan)}])
def test_what_does_not_fit_is_refused(wrong):
    x0, advantage = leaves()
    with pytest.raises(ValueError, match="must be"):
        sibling_covariance(**{"x0": x0, "advantage": advantage, "node": NODE, "child": CHILD, "nodes": 4} | wrong)


# --- the variance between children ------------------------------------------------------------------------------------


def contrast(*children):
    """Of one node, from the advantages below each child."""
    advantage = torch.tensor([a for child in children for a in child], dtype=torch.float64)
    child = torch.arange(len(children)).repeat_interleave(torch.tensor([len(child) for child in children]))
    return float(between_variance(advantage, torch.zeros_like(child), child, 1)[0])


def test_the_variance_between_children_by_loops():
    advantage = leaves()[1]
    found = between_variance(advantage, NODE, CHILD, 4)
    for n in range(4):
        below = {}
        for leaf in range(len(NODE)):
            if NODE[leaf] == n:
                below.setdefault(int(CHILD[leaf]), []).append(float(advantage[leaf]))
        k, m = len(below), sum(map(len, below.values()))
        if k < 2:
            assert found[n] == 0
            continue
        mean = sum(a for child in below.values() for a in child) / m
        values = {c: sum(child) / len(child) for c, child in below.items()}
        between = sum(len(child) * (values[c] - mean) ** 2 for c, child in below.items()) / (k - 1)
        within = sum((a - values[c]) ** 2 for c, child in below.items() for a in child) / (m - k) if m > k else 0.0
        size = (m - sum(len(child) ** 2 for child in below.values()) / m) / (k - 1)
        assert float(found[n]) == pytest.approx(max(0.0, (between - within) / size), abs=1e-12)


def test_the_variance_between_children_by_hand():
    assert contrast([1, 3], [5, 7], [9, 11]) == pytest.approx((32 - 2) / 2)
    assert contrast([0, 2, 4], [10]) == pytest.approx((48 - 4) / 1.5)  # m0 = 4 - (9 + 1) / 4
    assert contrast([1, 1], [4, 4, 4]) == pytest.approx((6 / 5 * 9) / (12 / 5))  # nothing within
    assert contrast([1, 3], [3, 1]) == 0 == contrast([1, 9], [3, 5])  # equal values; a spread that explains more
    assert contrast([1, 2, 3]) == 0 == contrast([2], [2], [2])


@pytest.mark.parametrize("seed", range(5))
def test_in_a_balanced_layout_it_is_the_textbook_estimator(seed):
    """Above 0 where F is above 1; of leaves their variance, where F has no value."""
    values = np.random.default_rng(seed).normal(size=(3, 1)) + np.random.default_rng(seed + 9).normal(size=(3, 5))
    within = values.var(axis=1, ddof=1).mean()
    expected = values.mean(axis=1).var(ddof=1) - within / 5
    assert contrast(*values.tolist()) == pytest.approx(max(0.0, expected))
    assert (contrast(*values.tolist()) > 0) == (stats.f_oneway(*values).statistic > 1)
    assert contrast(*values[:1].T.tolist()) == pytest.approx(values[0].var(ddof=1))


def test_it_estimates_the_variance_between_children_of_uneven_widths():
    trials, widths = 40_000, torch.tensor([4, 1, 2])
    generator = torch.Generator().manual_seed(3)
    between = 2.0 * torch.randn(trials, 3, generator=generator, dtype=torch.float64)
    child = torch.arange(3 * trials).repeat_interleave(widths.repeat(trials))
    noise = 0.1 * torch.randn(len(child), generator=generator, dtype=torch.float64)  # hardly ever cut at 0
    found = between_variance(between.flatten()[child] + noise, child // 3, child, trials)
    assert float(found.mean()) == pytest.approx(4.0, abs=4 * float(found.std()) / trials**0.5)


def test_neither_order_nor_a_constant_changes_it():
    advantage, order = leaves()[1], torch.randperm(len(NODE), generator=torch.Generator().manual_seed(1))
    before = between_variance(advantage, NODE, CHILD, 4)
    torch.testing.assert_close(between_variance(advantage[order], NODE[order], CHILD[order], 4), before)
    torch.testing.assert_close(between_variance(advantage, NODE, 11 - CHILD, 4), before)
    torch.testing.assert_close(between_variance(advantage + 5, NODE, CHILD, 4), before, rtol=1e-4, atol=1e-6)
    assert (between_variance(torch.where(NODE == 1, 0.1, advantage), NODE, CHILD, 4)[1]) == 0


FOREST = torch.tensor([-1, -1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 5, 5, 6, 6])
"""Nodes 0 and 1 above children 2, 3, 4 (with 2, 3 and 1 leaves) and 5, 6 (with 2 each)."""


def test_children_have_their_fused_values():
    """MSB and MSW from fused values in place of the children's means."""
    reward = torch.full(FOREST.shape, torch.nan)
    reward[7:] = leaves()[1]
    fused = fuse(FOREST, reward).double()
    child = FOREST[7:]
    found = between_variance(reward[7:], FOREST[child], child, 2)
    for n in (0, 1):
        below = {c: reward[7:][child == c].double() for c in torch.nonzero(n == FOREST).flatten().tolist()}
        m, k = sum(map(len, below.values())), len(below)
        between = sum(len(own) * float(fused[c] - fused[n]) ** 2 for c, own in below.items()) / (k - 1)
        within = sum(float((own - fused[c]).square().sum()) for c, own in below.items()) / (m - k)
        size = (m - sum(len(own) ** 2 for own in below.values()) / m) / (k - 1)
        assert float(found[n]) == pytest.approx(max(0.0, (between - within) / size), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("width", [1, 3])
def test_at_equal_widths_the_covariance_holds_the_step_credit_of_each_child(width):
    """C = sum of (V_c - V_n) (xbar_c - xbar) / (k - 1), and what is below the children."""
    k, generator = 5, torch.Generator().manual_seed(7)
    x0, advantage = (torch.randn(k, width, *shape, generator=generator, dtype=torch.float64) for shape in (SHAPE, ()))
    child = torch.arange(k).repeat_interleave(width)
    found = sibling_covariance(x0.flatten(0, 1), advantage.flatten(), torch.zeros_like(child), child, 1).direction[0]
    credit, ends = advantage.mean(1) - advantage.mean(), x0.mean(1) - x0.mean((0, 1))
    below = torch.einsum("cl,cl...->...", advantage - advantage.mean(1, True), x0 - x0.mean(1, True)) / (k * width)
    between = torch.einsum("c,c...->...", credit, ends) / (k - 1)
    torch.testing.assert_close(found, (between + below).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"child": CHILD[:-1]}, {"advantage": torch.full((10,), torch.inf)}])
def test_what_does_not_fit_has_no_variance(wrong):
    with pytest.raises(ValueError, match="must be"):
        between_variance(**{"advantage": leaves()[1], "node": NODE, "child": CHILD, "nodes": 4} | wrong)
