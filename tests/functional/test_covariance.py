"""The covariance below a node against loops over pairs, numpy, and the distribution that the leaves are drawn from."""

import numpy as np
import pytest
import torch

from diffrl.functional.covariance import between_variance, sibling_covariance

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


def test_neither_order_nor_a_constant_changes_it():
    advantage, order = leaves()[1], torch.randperm(len(NODE), generator=torch.Generator().manual_seed(1))
    before = between_variance(advantage, NODE, CHILD, 4)
    torch.testing.assert_close(between_variance(advantage[order], NODE[order], CHILD[order], 4), before)
    torch.testing.assert_close(between_variance(advantage, NODE, 11 - CHILD, 4), before)
    torch.testing.assert_close(between_variance(advantage + 5, NODE, CHILD, 4), before, rtol=1e-4, atol=1e-6)
    assert (between_variance(torch.where(NODE == 1, 0.1, advantage), NODE, CHILD, 4)[1]) == 0


@pytest.mark.parametrize("wrong", [{"child": CHILD[:-1]}, {"advantage": torch.full((10,), torch.inf)}])
def test_what_does_not_fit_has_no_variance(wrong):
    with pytest.raises(ValueError, match="must be"):
        between_variance(**{"advantage": leaves()[1], "node": NODE, "child": CHILD, "nodes": 4} | wrong)
