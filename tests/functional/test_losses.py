"""The losses against plain Python, finite differences and autograd."""

import math

import pytest
import torch

from diffrl.functional.losses import clipped_surrogate, nft_loss, optimality, velocity_kl

LOW, HIGH = 0.2, 0.3


def random_edges(seed=0, edges=31):
    generator = torch.Generator().manual_seed(seed)
    old, change, advantage = torch.randn(3, edges, generator=generator)
    return old + 0.3 * change, old, advantage


def test_equals_plain_python():
    log_prob, old, advantage = random_edges()
    loss, metrics = clipped_surrogate(log_prob, old, advantage, LOW, HIGH)
    ratios = [math.exp(new - before) for new, before in zip(log_prob.tolist(), old.tolist(), strict=True)]
    expected, clipped = [], 0
    for ratio, a in zip(ratios, advantage.tolist(), strict=True):
        bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
        expected.append(-min(a * ratio, a * bounded))  # PPO maximises the smaller of the two
        clipped += a * bounded < a * ratio
    torch.testing.assert_close(loss, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert float(metrics["ratio"].mean()) == pytest.approx(sum(ratios) / 31, rel=1e-5)
    assert float(metrics["ratio_error"].max()) == pytest.approx(max(abs(ratio - 1) for ratio in ratios), rel=1e-4)
    assert float(metrics["clipped"].mean()) == pytest.approx(clipped / 31) and 0 < clipped < 31
    k3 = sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 31
    assert float(metrics["approx_kl"].mean()) == pytest.approx(k3, rel=1e-3)


@pytest.mark.parametrize("clip", [0.0, 1e-5, 0.2])
def test_on_policy_the_gradient_is_that_of_the_policy_gradient(clip):
    _, old, advantage = random_edges(1)
    log_prob = old.clone().requires_grad_()
    loss, metrics = clipped_surrogate(log_prob, old, advantage, clip, clip)
    assert torch.equal(loss.detach(), -advantage)
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    torch.testing.assert_close(gradient, -advantage, rtol=1e-6, atol=0.0)
    assert {name: float(values.max()) for name, values in metrics.items()} == {
        "ratio": 1.0,
        "ratio_error": 0.0,
        "clipped": 0.0,
        "approx_kl": 0.0,
    }


@pytest.mark.parametrize("advantage", [1.7, -1.7])
@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.81, 1.29, 1.31, 2.0])
def test_the_gradient_vanishes_exactly_where_the_move_went_far_enough(ratio, advantage):
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, metrics = clipped_surrogate(log_prob, torch.zeros(1), torch.tensor([advantage]), LOW, HIGH)
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    far_enough = ratio > 1 + HIGH if advantage > 0 else ratio < 1 - LOW
    assert float(gradient) == (0.0 if far_enough else pytest.approx(-advantage * ratio, rel=1e-5))
    assert float(metrics["clipped"].mean()) == float(far_enough)


@pytest.mark.parametrize("scale", [1e-7, 1e-5, 1e-3, 0.1, 3.0])
def test_k3_is_never_negative_and_half_the_squared_log_ratio_when_small(scale):
    for seed in range(5):
        change = scale * torch.randn(101, generator=torch.Generator().manual_seed(seed))
        _, metrics = clipped_surrogate(change, torch.zeros(101), torch.ones(101), LOW, HIGH)
        assert float(metrics["approx_kl"].mean()) >= 0.0
        if 1e-5 <= scale <= 1e-3:
            half_square = 0.5 * float(change.double().square().mean())
            assert float(metrics["approx_kl"].mean()) == pytest.approx(half_square, rel=1e-2)


def test_refuses_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match=r"must all be \(E,\)"):
        clipped_surrogate(torch.zeros(5), torch.zeros(5, 1), torch.zeros(5), LOW, HIGH)
    with pytest.raises(ValueError, match="E >= 1"):
        clipped_surrogate(torch.zeros(0), torch.zeros(0), torch.zeros(0), LOW, HIGH)
    with pytest.raises(ValueError, match="Clip bounds"):
        clipped_surrogate(torch.zeros(5), torch.zeros(5), torch.zeros(5), -LOW, HIGH)


def test_velocity_kl_is_the_mean_squared_error_of_each_row():
    generator = torch.Generator().manual_seed(4)
    v, v_ref = torch.randn(2, 5, 2, 3, 7, generator=generator)
    expected = [float(torch.nn.functional.mse_loss(a, b)) for a, b in zip(v, v_ref, strict=True)]
    assert velocity_kl(v, v_ref).tolist() == pytest.approx(expected, rel=1e-5)
    assert velocity_kl(v.bfloat16(), v_ref.bfloat16()).dtype == torch.float32
    v.requires_grad_()
    (gradient,) = torch.autograd.grad(velocity_kl(v, v_ref).sum(), v)
    torch.testing.assert_close(gradient, 2 * (v.detach() - v_ref) / 42, rtol=1e-4, atol=1e-6)


# --- DiffusionNFT -----------------------------------------------------------------------------------------------------

SIGMA = torch.tensor([0.2, 0.37, 0.5, 0.81, 1.0])
R = torch.tensor([0.0, 0.3, 0.5, 0.9, 1.0])
BETA = 0.7


def random_latents(seed=0):
    """(v, v_old, x, x0) of 5 rows, the velocities close to each other as after a few updates."""
    generator = torch.Generator().manual_seed(seed)
    x0, noise, error, change = torch.randn(4, 5, 2, 3, 7, generator=generator)
    level = SIGMA.reshape(5, 1, 1, 1)
    v_old = noise - x0 + 0.4 * error
    return v_old + 0.2 * change, v_old, (1 - level) * x0 + level * noise, x0


def naive_side(v, v_old, x, x0, sigma, guide, eps, weight=None):
    """L+ (guide = beta) or L- (guide = -beta) of one row, element by element; and its weight."""
    errors = []
    for new, old, noisy, clean in zip(*(row.flatten().tolist() for row in (v, v_old, x, x0)), strict=True):
        errors.append(noisy - sigma * (old + guide * new - guide * old) - clean)
    weight = weight or max(sum(abs(error) for error in errors) / len(errors), eps)
    return sum(error**2 for error in errors) / len(errors) / weight, weight


@pytest.mark.parametrize("clip", [5.0, 3.0])
def test_nft_equals_plain_python(clip):
    tensors = random_latents()
    loss, metrics = nft_loss(*tensors, SIGMA, R, BETA, advantage_clip=clip)
    assert loss.shape == (5,) and loss.dtype == torch.float32
    for row in range(5):
        rows = [tensor[row].double() for tensor in tensors]
        plus, _ = naive_side(*rows, float(SIGMA[row]), BETA, 1e-5)
        minus, _ = naive_side(*rows, float(SIGMA[row]), -BETA, 1e-5)
        good = float(R[row])
        assert float(loss[row]) == pytest.approx(clip * (good * plus + (1 - good) * minus) / BETA, rel=1e-4)
        assert float(metrics["loss_plus"][row]) == pytest.approx(plus, rel=1e-4)
        assert float(metrics["loss_minus"][row]) == pytest.approx(minus, rel=1e-4)
        gap = torch.nn.functional.mse_loss(rows[0], rows[1])
        assert float(metrics["velocity_gap"][row]) == pytest.approx(float(gap), rel=1e-4)
    assert not any(value.requires_grad for value in metrics.values())


def test_nft_weight_has_a_floor_and_a_perfect_prediction_loses_nothing():
    generator = torch.Generator().manual_seed(3)
    x0, noise = torch.randn(2, 5, 11, generator=generator)
    x, v = torch.lerp(x0, noise, 0.5), noise - x0
    loss, _ = nft_loss(v, v, x, x0, 0.5, R, BETA)
    assert bool(loss.isfinite().all()) and float(loss.max()) < 1e-6
    off, _ = nft_loss(v + 0.02, v + 0.02, x, x0, 0.5, torch.ones(5), 1.0, eps=0.1, advantage_clip=1.0)
    torch.testing.assert_close(off, torch.full((5,), 0.01**2 / 0.1), rtol=1e-3, atol=0.0)


def test_nft_leaves_the_old_velocity_alone_and_takes_half_precision():
    v, v_old, x, x0 = random_latents(4)
    v_old.requires_grad_()
    nft_loss(v.requires_grad_(), v_old, x, x0, SIGMA, R, BETA)[0].sum().backward()
    assert v.grad is not None and v_old.grad is None
    halves = [tensor.detach().bfloat16() for tensor in (v, v_old, x, x0)]
    loss, _ = nft_loss(*halves, SIGMA, R, BETA)
    assert torch.equal(loss, nft_loss(*[tensor.float() for tensor in halves], SIGMA, R, BETA)[0])


def test_nft_refuses_what_would_broadcast_or_divide_by_zero():
    v, v_old, x, x0 = random_latents(5)
    with pytest.raises(ValueError, match="of one shape"):
        nft_loss(v, v_old[:1], x, x0, SIGMA, R, BETA)
    with pytest.raises(ValueError, match=r"r \(B,\)"):
        nft_loss(v, v_old, x, x0, SIGMA, R.reshape(5, 1), BETA)
    with pytest.raises(ValueError, match="one value for each of 5 rows"):
        nft_loss(v, v_old, x, x0, SIGMA[:3], R, BETA)
    for wrong in ({"beta": 0.0}, {"beta": BETA, "eps": 0.0}, {"beta": BETA, "advantage_clip": -5.0}):
        with pytest.raises(ValueError, match="must be above 0"):
            nft_loss(v, v_old, x, x0, SIGMA, R, **wrong)


def test_optimality_is_a_ramp():
    advantage = torch.tensor([-torch.inf, -7.0, -5.0, -2.5, 0.0, 1.0, 5.0, 9.0])
    assert optimality(advantage).tolist() == pytest.approx([0, 0, 0, 0.25, 0.5, 0.6, 1, 1])
    assert optimality(advantage, 2.0).tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0.75, 1, 1])
    assert optimality(advantage.bfloat16()).dtype == torch.float32
    with pytest.raises(ValueError, match="advantage_clip must be above 0"):
        optimality(advantage, 0.0)
