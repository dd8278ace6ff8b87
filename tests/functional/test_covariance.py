"""The covariance below a node against loops over pairs, numpy, and the distribution that the leaves are drawn from."""

import numpy as np
import pytest
import torch

from diffrl.functional.covariance import sibling_covariance

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
