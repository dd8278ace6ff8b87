"""Densities against torch.distributions."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from diffrl.functional.dynamics import ode_step
from diffrl.functional.gaussian import kl, log_prob

SHAPE = (5, 2, 3, 7)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(7)
    x, mean, other = torch.randn(3, *SHAPE, generator=generator)
    std = torch.rand(5, generator=generator) + 0.05
    return x, mean, other, std


def over_pixels(tensor):
    return tensor.mean(dim=(1, 2, 3))


def test_log_prob_is_that_of_torch_distributions(data):
    x, mean, _, std = data
    expected = over_pixels(Normal(mean, std.reshape(5, 1, 1, 1)).log_prob(x))
    for shape in [(5,), (5, 1, 1, 1)]:
        torch.testing.assert_close(log_prob(x, mean, std.reshape(shape)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("std", [0.3, torch.tensor(0.3), torch.full((1, 1, 1, 1), 0.3)], ids=["float", "0d", "4d"])
def test_one_std_serves_all_rows(data, std):
    x, mean, _, _ = data
    expected = over_pixels(Normal(mean, 0.3).log_prob(x))
    torch.testing.assert_close(log_prob(x, mean, std), expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_torch_distributions(data):
    x, mean, _, std = data
    ours, theirs = mean.clone().requires_grad_(), mean.clone().requires_grad_()
    weights = torch.arange(1.0, 6.0)
    (log_prob(x, ours, std) * weights).sum().backward()
    (over_pixels(Normal(theirs, std.reshape(5, 1, 1, 1)).log_prob(x)) * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_kl_is_that_of_torch_distributions(data):
    _, mean, other, std = data
    column = std.reshape(5, 1, 1, 1)
    expected = over_pixels(kl_divergence(Normal(mean, column), Normal(other, column)))
    torch.testing.assert_close(kl(mean, other, std), expected, rtol=1e-4, atol=1e-5)
    assert float(kl(mean, mean, std).abs().max()) == 0.0


def test_half_precision_is_scored_in_float32(data):
    x, mean, _, _ = (tensor.bfloat16() for tensor in data)
    expected = over_pixels(Normal(mean.double(), 0.01).log_prob(x.double()))
    scored = log_prob(x, mean, 0.01)
    assert scored.dtype == torch.float32
    torch.testing.assert_close(scored.double(), expected, rtol=1e-5, atol=0.0)


def test_an_ode_step_has_no_density(data):
    x, v, other, _ = data
    mean, std = ode_step(x, v, 0.8, 0.6)
    with pytest.raises(ValueError, match="ODE steps have no density"):
        log_prob(x, mean, std)
    with pytest.raises(ValueError, match="ODE steps have no density"):
        kl(mean, other, std)
    one_bad_row = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.1])
    with pytest.raises(ValueError, match="ODE steps have no density"):
        log_prob(x, mean, one_bad_row)
    with pytest.raises(ValueError, match="std must be above 0"):
        log_prob(x, mean, float("nan"))
