"""Tree tilt's loss: the gradient of the regression that it stands for, and a policy that ends at the known optimum."""

import pytest
import torch

from diffrl.functional.covariance import sibling_covariance
from diffrl.functional.losses import tilt_loss, velocity_kl

SHAPE = (2, 3, 5)


def random_nodes(nodes=7, seed=2):
    generator = torch.Generator().manual_seed(seed)
    v, x, direction, centre = (torch.randn(nodes, *SHAPE, generator=generator) for _ in range(4))
    return v, x, 0.1 + 0.9 * torch.rand(nodes, generator=generator), direction, centre


def test_the_gradient_is_that_of_the_regression_to_the_moved_prediction():
    v, x, sigma, direction, centre = random_nodes()
    new, wide = v.clone().requires_grad_(), sigma.reshape(-1, 1, 1, 1)
    loss, metrics = tilt_loss(new, x, sigma, direction, centre)
    (found,) = torch.autograd.grad(loss.sum(), new)
    again = v.clone().double().requires_grad_()
    old, prediction = (x - wide * v).double(), x.double() - wide.double() * again
    total = 0.0
    for n in range(len(v)):
        scale = float((old[n] - centre[n].double()).abs().mean())
        total = total + ((prediction[n] - (old[n] + direction[n].double())) ** 2).mean() / scale
        assert float(metrics["prediction_error"][n]) == pytest.approx(scale, rel=1e-5)
        assert float(metrics["direction"][n]) == pytest.approx(
            float(direction[n].double().square().mean() ** 0.5), rel=1e-5
        )
    (expected,) = torch.autograd.grad(total, again)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-8)


def test_a_prediction_at_the_centre_is_divided_by_the_floor():
    v, x, sigma, direction, _ = random_nodes()
    centre = x - sigma.reshape(-1, 1, 1, 1) * v
    loss, _ = tilt_loss(v.requires_grad_(), x, sigma, direction, centre, eps=0.01)
    loss.sum().backward()
    expected = 2 * sigma.reshape(-1, 1, 1, 1) * direction / 30 / 0.01
    torch.testing.assert_close(v.grad, expected, rtol=1e-4, atol=1e-6)


def test_shapes_and_floor_are_checked():
    v, x, sigma, direction, centre = random_nodes()
    with pytest.raises(ValueError, match="one shape"):
        tilt_loss(v, x, sigma, direction[:-1], centre)
    with pytest.raises(ValueError, match="eps"):
        tilt_loss(v, x, sigma, direction, centre, eps=0.0)


@pytest.mark.parametrize("s", [0.35, 0.8])
def test_under_a_kl_leash_the_policy_moves_to_the_optimum(s):
    """x0 ~ N(0, I), so p(x0 | x) is a known Gaussian; with reward a . x0 the tilted p* is one too.

    At a latent x of level s the posterior is N(m(x), t I), and p*(x0 | x) ~ p(x0 | x) exp(a . x0 / b) predicts
    m(x) + t a / b. The policy predicts m(x) + theta and is trained by gradient descent on tilt plus the velocity KL.
    """
    nodes, width, d, b = 3_000, 3, 5, 0.7
    generator = torch.Generator().manual_seed(8)
    clean, noise = torch.randn(2, nodes, d, generator=generator)
    x = (1 - s) * clean + s * noise
    t = s**2 / ((1 - s) ** 2 + s**2)
    mean = (1 - s) * x / ((1 - s) ** 2 + s**2)
    drawn = mean.repeat_interleave(width, 0) + t**0.5 * torch.randn(nodes * width, d, generator=generator)
    a = torch.tensor([0.5, -1.0, 0.0, 0.25, 2.0])
    rows = torch.arange(nodes * width)
    direction, centre = sibling_covariance(drawn, drawn @ a, rows // width, rows, nodes)
    theta = torch.zeros(d, requires_grad=True)
    scale, reference = 50.0, (x - mean) / s
    kl = b * s**2 / scale  # KL of predictions is (s / scale) of the velocities'
    optimiser = torch.optim.SGD([theta], lr=0.4 * scale * d / b)
    for _ in range(40):
        velocity = (x - (mean + theta)) / s
        loss = tilt_loss(velocity, x, s, direction, centre, eps=scale)[0] + kl * velocity_kl(velocity, reference)
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
    error = direction.std(0) / nodes**0.5 / b
    assert ((theta.detach() - t * a / b).abs() < 4 * error).all()
    assert (theta.detach() - t * a / b).norm() < 0.1 * (t * a / b).norm()
