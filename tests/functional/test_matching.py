"""AWM, DGPO and CRD against plain Python, the preference loss that DGPO comes from, closed forms and each other."""

import math

import pytest
import torch

from diffrl.functional.losses import nft_loss, optimality
from diffrl.functional.matching import (
    awm_loss,
    crd_loss,
    dgpo_loss,
    group_mean,
    group_weight,
    implicit_reward,
    matching_log_prob,
)

SIGMA = torch.tensor([0.2, 0.37, 0.5, 0.81, 1.0])
ADVANTAGE = torch.tensor([1.3, -0.7, 0.0, 7.0, -9.0])
WEIGHTINGS = ("uniform", "sigma", "sigma_squared", "huber", "ghuber", "normalised")


def random_velocities(seed=0, rows=5):
    """(v, v_old, target) of rows, the velocities close to each other as after a few updates."""
    generator = torch.Generator().manual_seed(seed)
    target, error, change = torch.randn(3, rows, 2, 3, 7, generator=generator)
    return target + 0.4 * error + 0.2 * change, target + 0.4 * error, target


def naive_errors(v, target):
    """Mean square and mean absolute difference of one row, number by number."""
    gaps = [a - b for a, b in zip(v.flatten().tolist(), target.flatten().tolist(), strict=True)]
    return sum(gap * gap for gap in gaps) / len(gaps), sum(abs(gap) for gap in gaps) / len(gaps)


def naive_log_prob(v, target, sigma, weighting, power):
    square, distance = naive_errors(v, target)
    return {
        "uniform": lambda: -square,
        "sigma": lambda: -square * sigma,
        "sigma_squared": lambda: -square * sigma**2,
        "huber": lambda: -(math.sqrt(square + 1e-10) - 1e-5) * sigma,
        "ghuber": lambda: -(math.pow(square + 1e-10, power) - math.pow(1e-10, power)) * sigma / power,
        "normalised": lambda: -square * sigma / distance,
    }[weighting]()


# --- AWM --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_awm_equals_plain_python(weighting):
    v, v_old, target = random_velocities()
    low, high, power = 0.05, 0.02, 0.3
    loss, metrics = awm_loss(v, v_old, target, SIGMA, ADVANTAGE, weighting, power, low, high)
    for row in range(5):
        sigma, a = float(SIGMA[row]), float(ADVANTAGE[row])
        new, old = (naive_log_prob(u[row].double(), target[row].double(), sigma, weighting, power) for u in (v, v_old))
        ratio = math.exp(new - old)
        worst = max(-a * ratio, -a * min(max(ratio, 1 - low), 1 + high))
        assert float(loss[row]) == pytest.approx(worst, rel=1e-4, abs=1e-6)
        assert float(metrics["ratio"][row]) == pytest.approx(ratio, rel=1e-4)
        assert float(metrics["matching_error"][row]) == pytest.approx(naive_errors(v[row], target[row])[0], rel=1e-4)
    assert not any(value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_awms_gradient_on_its_own_policy_is_that_of_the_weighted_regression(weighting):
    """Closed form of A * d(-l)/dv, a multiple of v - target."""
    v, _, target = random_velocities(1)
    v.requires_grad_()
    loss, metrics = awm_loss(v, v, target, SIGMA, ADVANTAGE, weighting, 0.25, 1.0, 1.0)
    (gradient,) = torch.autograd.grad(loss.sum(), v)
    assert (metrics["ratio"] == 1).all() and torch.equal(loss.detach(), -ADVANTAGE)
    for row in range(5):
        sigma, error = float(SIGMA[row]), (v.detach() - target)[row].double()
        square, distance = naive_errors(v[row].double(), target[row].double())
        slope = {
            "uniform": 1.0,
            "sigma": sigma,
            "sigma_squared": sigma**2,
            "huber": 0.5 * sigma / math.sqrt(square + 1e-10),
            "ghuber": sigma * math.pow(square + 1e-10, -0.75),
            "normalised": sigma / distance,
        }[weighting]
        expected = float(ADVANTAGE[row]) * slope * 2 * error / 42
        torch.testing.assert_close(gradient[row].double(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_awm_with_the_normalised_weight_is_nft_on_its_own_policy(beta):
    """Advantages are cut at 5 by NFT's optimality alone."""
    generator = torch.Generator().manual_seed(2)
    x0, noise, error = torch.randn(3, 5, 2, 3, 7, generator=generator).double().unbind()
    level = SIGMA.reshape(5, 1, 1, 1)
    x, v = ((1 - level) * x0 + level * noise).float(), (noise - x0 + 0.4 * error).float().requires_grad_()
    nft, _ = nft_loss(v, v.detach(), x, x0.float(), SIGMA, optimality(ADVANTAGE), beta)
    awm, _ = awm_loss(v, v, (noise - x0).float(), SIGMA, ADVANTAGE.clamp(-5, 5), "normalised", 0.25, 1.0, 1.0)
    (one,), (other,) = (torch.autograd.grad(loss.sum(), v) for loss in (nft, awm))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    assert float(other.abs().max()) > 0.01


def test_a_perfect_match_has_a_finite_gradient():
    for weighting in WEIGHTINGS:
        target = random_velocities(4)[2]
        v = target.clone().requires_grad_()
        log_prob = matching_log_prob(v, target, SIGMA, weighting)
        (gradient,) = torch.autograd.grad(log_prob.sum(), v)
        assert float(log_prob.detach().abs().max()) < 1e-6 and bool((gradient == 0).all()), weighting


# --- DGPO -------------------------------------------------------------------------------------------------------------

CELL = torch.tensor([7, 2, 7, 2, 7, 2, 7])
MEMBER = torch.tensor([True, True, True, True, True, False, True])


@pytest.mark.parametrize("advantage", [1.7, -1.7])
@pytest.mark.parametrize("ratio", [0.5, 0.94, 0.96, 1.04, 1.06, 2.0])
def test_dgpo_stops_where_the_move_went_far_enough(ratio, advantage):
    target = torch.zeros(1, 11)
    v_old = torch.ones(1, 11)
    v = torch.full((1, 11), math.sqrt(1.0 - math.log(ratio)), requires_grad=True)
    loss, metrics = dgpo_loss(v, v_old, target, torch.tensor([advantage]), torch.tensor([0.3]), 0.05)
    (gradient,) = torch.autograd.grad(loss.sum() + 0 * v.sum(), v)
    stopped = ratio > 1.05 if advantage > 0 else ratio < 0.95
    assert float(metrics["clipped"]) == stopped
    expected = 0.0 if stopped else 0.3 * advantage * 2 * float(v[0, 0].detach()) / 11
    assert gradient[0].tolist() == pytest.approx([expected] * 11, rel=1e-5)
    free, _ = dgpo_loss(v, v_old, target, torch.tensor([advantage]), torch.tensor([0.3]), None)
    assert torch.equal(free, loss) and float(torch.autograd.grad(free.sum(), v)[0].abs().max()) > 0


# --- CRD --------------------------------------------------------------------------------------------------------------


# --- all --------------------------------------------------------------------------------------------------------------


def test_a_mean_over_a_group_leaves_out_whoever_is_no_part_of_it():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, math.nan, 9.0])
    assert group_mean(values, CELL, MEMBER).tolist() == [4.5, 3.0, 4.5, 3.0, 4.5, 3.0, 4.5]
    assert group_mean(values, CELL, torch.zeros(7, dtype=torch.bool)).tolist() == [0.0] * 7


def test_the_old_velocity_gets_no_gradient_and_half_precision_is_taken():
    v, v_old, target = random_velocities(9)
    v.requires_grad_()
    v_old.requires_grad_()
    (
        awm_loss(v, v_old, target, SIGMA, ADVANTAGE, "sigma", 0.25, 1.0, 1.0)[0].sum()
        + dgpo_loss(v, v_old, target, ADVANTAGE, torch.rand(5), 0.5)[0].sum()
        + implicit_reward(v, v_old, target).sum()
    ).backward()
    assert v.grad is not None and v_old.grad is None
    halves = [tensor.detach().bfloat16() for tensor in (v, v_old, target)]
    full = [tensor.float() for tensor in halves]
    assert torch.equal(implicit_reward(*halves), implicit_reward(*full))
    for weighting in WEIGHTINGS:
        found = matching_log_prob(halves[0], halves[2], SIGMA, weighting)
        assert found.dtype == torch.float32
        assert torch.equal(found, matching_log_prob(full[0], full[2], SIGMA, weighting))


def test_they_refuse_what_would_broadcast_or_divide_by_zero():
    v, v_old, target = random_velocities(10)
    one = torch.ones(5)
    for wrong in (lambda: matching_log_prob(v, target[:1], SIGMA, "sigma"), lambda: implicit_reward(v, v_old[:1], v)):
        with pytest.raises(ValueError, match="of one shape"):
            wrong()
    with pytest.raises(ValueError, match=r"columns \(B,\)"):
        dgpo_loss(v, v_old, target, one, one.reshape(5, 1), 0.1)
    with pytest.raises(ValueError, match="one value for each of 5 rows"):
        matching_log_prob(v, target, SIGMA[:3], "sigma")
    with pytest.raises(ValueError, match="weighting must be one of uniform, sigma"):
        matching_log_prob(v, target, SIGMA, "cubic")
    with pytest.raises(ValueError, match="power and eps must be above 0"):
        matching_log_prob(v, target, SIGMA, "ghuber", 0.0)
    with pytest.raises(ValueError, match="eps must be above 0"):
        implicit_reward(v, v_old, target, 0.0)
    with pytest.raises(ValueError, match="clip must be at least 0"):
        dgpo_loss(v, v_old, target, one, one, -0.1)
    with pytest.raises(ValueError, match="beta must be above 0"):
        group_weight(one, one, one, CELL[:5], MEMBER[:5], 0.0)
    with pytest.raises(ValueError, match="beta and advantage_clip must be above 0"):
        crd_loss(one, one, one, one, 0.0)
    with pytest.raises(ValueError, match=r"must all be \(B,\)"):
        crd_loss(one, one.reshape(5, 1), one, one, 1.0)
    with pytest.raises(ValueError, match=r"values, cell and counts must all be \(B,\)"):
        group_mean(one, CELL, MEMBER)
