"""The clipped surrogate against plain Python and autograd."""

import math

import pytest
import torch

from diffrl.functional.losses import clipped_surrogate, velocity_kl

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


def test_micro_batches_add_up_to_the_whole():
    log_prob, old, advantage = random_edges(2)
    whole = log_prob.clone().requires_grad_()
    (clipped_surrogate(whole, old, advantage, LOW, HIGH)[0].sum() / 31).backward()
    parts = log_prob.clone().requires_grad_()
    for rows in torch.arange(31).split(7):
        (clipped_surrogate(parts[rows], old[rows], advantage[rows], LOW, HIGH)[0].sum() / 31).backward()
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-6, atol=0.0)


def test_metrics_carry_no_gradient():
    log_prob, old, advantage = random_edges(3)
    loss, metrics = clipped_surrogate(log_prob.requires_grad_(), old, advantage, LOW, HIGH)
    assert loss.requires_grad and loss.shape == (31,)
    assert not any(value.requires_grad for value in metrics.values())


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
