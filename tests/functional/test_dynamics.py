"""Every dynamics against closed forms, autograd and Monte Carlo.

The world of most tests is Gaussian: images x0 ~ N(M, S0^2), so that the latents at s are N((1-s) M, (1-s)^2 S0^2 + s^2)
and the best velocity, E[eps - x0 | x], is linear in x.
"""

import math

import pytest
import torch
from torch.distributions import Normal

from diffrl.functional.dynamics import ab2_step, cps_step, dance_sde_step, flow_sde_step, ode_step
from diffrl.functional.schedules import sigma_grid

M, S0 = 1.3, 0.6
SHAPE = (5, 2, 3, 7)

DYNAMICS = {
    "ode": lambda x, v, s, n: ode_step(x, v, s, n),
    "ab2": lambda x, v, s, n: ab2_step(x, v, x.flip(-1), s, n, s + 0.17),
    "flow_sde": lambda x, v, s, n: flow_sde_step(x, v, s, n, 0.7, 0.93),
    "dance_sde": lambda x, v, s, n: dance_sde_step(x, v, s, n, 0.3),
    "cps": lambda x, v, s, n: cps_step(x, v, s, n, 0.8),
}
NOISELESS = {
    "flow_sde": lambda x, v, s, n: flow_sde_step(x, v, s, n, 0.0, 0.93),
    "dance_sde": lambda x, v, s, n: dance_sde_step(x, v, s, n, 0.0),
    "cps": lambda x, v, s, n: cps_step(x, v, s, n, 0.0),
}


def marginal(s):
    return Normal((1 - s) * M, math.sqrt((1 - s) ** 2 * S0**2 + s**2))


def gaussian_velocity(x, s):
    """E[eps - x0 | x] by the regression of jointly normal variables."""
    slope = (s - (1 - s) * S0**2) / marginal(s).variance
    return slope * (x - marginal(s).mean) - M


@pytest.fixture
def latents():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SHAPE, generator=generator), torch.randn(SHAPE, generator=generator)


# --- the marginal survives many small steps ---------------------------------------------------------------------------


def cps_with_diffusion(x, v, s, n, g):
    """Cps whose noise shrinks with the step as an SDE's does: q = g * sqrt(s - n)."""
    return cps_step(x, v, s, n, math.asin(g * math.sqrt(s - n) / n) * 2 / math.pi)


@pytest.mark.parametrize(
    "step",
    [
        lambda x, v, s, n: ode_step(x, v, s, n),
        lambda x, v, s, n: flow_sde_step(x, v, s, n, 0.7, 0.97),
        lambda x, v, s, n: dance_sde_step(x, v, s, n, 0.8),
        lambda x, v, s, n: cps_with_diffusion(x, v, s, n, 0.8),
    ],
    ids=["ode", "flow_sde", "dance_sde", "cps"],
)
def test_small_steps_keep_the_marginal(step):
    samples, start, end = 20011, 0.97, 0.11
    generator = torch.Generator().manual_seed(0)
    x = marginal(start).mean + marginal(start).stddev * torch.randn(samples, 1, generator=generator)
    sigmas = torch.linspace(start, end, 401).tolist()
    for s, n in zip(sigmas[:-1], sigmas[1:], strict=True):
        mean, std = step(x, gaussian_velocity(x, s), s, n)
        x = mean + std * torch.randn(samples, 1, generator=generator)
    expected = marginal(end)
    # Four standard errors of a mean and of a standard deviation, and 0.3 % for the finite step.
    assert abs(x.mean() - expected.mean) < 4 * expected.stddev / math.sqrt(samples) + 3e-3 * expected.mean
    assert abs(x.std() / expected.stddev - 1) < 4 / math.sqrt(2 * samples) + 3e-3


# --- single steps against other derivations ---------------------------------------------------------------------------


def flow_grpo_code(x, v, s, n, a, sigma_max):
    """The published form: the same update with the terms gathered by x and by v, and a negative dt."""
    dt = n - s
    std_dev = math.sqrt(s / (1 - (sigma_max if s == 1 else s))) * a
    mean = x * (1 + std_dev**2 / (2 * s) * dt) + v * (1 + std_dev**2 * (1 - s) / (2 * s)) * dt
    return mean, std_dev * math.sqrt(-dt)


@pytest.mark.parametrize("step", range(10))
def test_flow_sde_equals_the_published_code(latents, step):
    x, v = latents
    grid = sigma_grid(11, 3.0)
    s, n, sigma_max = float(grid[step]), float(grid[step + 1]), float(grid[1])
    expected_mean, expected_std = flow_grpo_code(x.double(), v.double(), s, n, 0.7, sigma_max)
    mean, std = flow_sde_step(x, v, grid[step], grid[step + 1], 0.7, grid[1])
    torch.testing.assert_close(mean.double(), expected_mean, rtol=1e-4, atol=1e-5)
    assert float(std) == pytest.approx(expected_std, rel=1e-5)


@pytest.mark.parametrize("s, n", [(1.0, 0.9), (0.8, 0.5), (0.3, 0.1)])
@pytest.mark.parametrize("name, g", [("dance_sde", 0.3), ("flow_sde", None)])
def test_sde_drift_is_the_score_form(s, n, name, g):
    """dx = (v - g^2/2 * score) ds, with the score from autograd of the marginal's log-density."""
    if g is None:
        g = 0.7 * math.sqrt(s / (1 - (0.93 if s == 1 else s)))
    x = torch.linspace(-2, 3, 17, dtype=torch.float64).reshape(17, 1).requires_grad_()
    (score,) = torch.autograd.grad(marginal(s).log_prob(x).sum(), x)
    v = gaussian_velocity(x.detach(), s)
    expected = x.detach() + (v - g**2 / 2 * score) * (n - s)
    mean, std = DYNAMICS[name](x.detach(), v, s, n)
    torch.testing.assert_close(mean.double(), expected, rtol=1e-4, atol=1e-5)
    assert float(std) ** 2 == pytest.approx(g**2 * (s - n), rel=1e-4)


@pytest.mark.parametrize("noise_level", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("s, n", [(1.0, 0.83), (0.6, 0.37), (0.2, 0.05)])
def test_cps_keeps_the_coefficients_of_image_and_noise(s, n, noise_level):
    """With the exact velocity the next latent is (1 - n) x0 plus noise of power n^2, part old and part fresh."""
    x0 = torch.tensor([1.0, 0.0]).reshape(2, 1)  # row 0 sees the coefficient of the image, row 1 that of the noise
    eps = torch.tensor([0.0, 1.0]).reshape(2, 1)
    mean, std = cps_step((1 - s) * x0 + s * eps, eps - x0, s, n, noise_level)
    assert float(mean[0]) == pytest.approx(1 - n, abs=1e-6)
    assert float(mean[1]) ** 2 + float(std) ** 2 == pytest.approx(n**2, rel=1e-4)
    assert float(std) == pytest.approx(n * math.sin(math.radians(90 * noise_level)), abs=1e-6)


@pytest.mark.parametrize("name", NOISELESS)
@pytest.mark.parametrize("s, n", [(1.0, 0.93), (0.7, 0.4), (0.3, 0.02)])
def test_without_noise_every_dynamics_is_the_ode(latents, name, s, n):
    x, v = latents
    step = NOISELESS[name](x, v, s, n)
    torch.testing.assert_close(step.mean, x + (n - s) * v, rtol=1e-4, atol=1e-5)
    assert float(step.std.abs().max()) == 0.0


# --- two-step Adams-Bashforth -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("p, s, n", [(1.0, 0.9, 0.5), (0.8, 0.5, 0.43), (0.6, 0.2, 0.0)])
def test_ab2_is_exact_where_the_velocity_is_linear_in_sigma(latents, p, s, n):
    """dx/dsigma = a + b * sigma, whose integral is known; Euler is off by the curvature."""
    a, b = latents
    start = torch.full(SHAPE, 0.7)
    mean, std = ab2_step(start, a + b * s, a + b * p, s, n, p)
    torch.testing.assert_close(mean, start + a * (n - s) + b * (n**2 - s**2) / 2, rtol=1e-4, atol=1e-5)
    assert float(std.abs().max()) == 0.0
    euler_error = ode_step(start, a + b * s, s, n).mean - mean
    torch.testing.assert_close(euler_error, -b * (n - s) ** 2 / 2, rtol=1e-3, atol=1e-5)


# --- shapes and dtypes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_vector_of_noise_levels_equals_rows_with_numbers(latents, name):
    x, v = latents
    sigma, sigma_next = torch.tensor([1.0, 0.8, 0.61, 0.4, 0.2]), torch.tensor([0.93, 0.5, 0.6, 0.13, 0.1])
    together = DYNAMICS[name](x, v, sigma, sigma_next)
    assert together.std.shape == (5, 1, 1, 1)
    for row in range(5):
        for number in (float, lambda tensor: tensor):
            alone = DYNAMICS[name](x[row : row + 1], v[row : row + 1], number(sigma[row]), number(sigma_next[row]))
            assert alone.std.shape == (1, 1, 1, 1)
            torch.testing.assert_close(alone.mean, together.mean[row : row + 1], rtol=0, atol=0)
            torch.testing.assert_close(alone.std, together.std[row : row + 1], rtol=0, atol=0)


@pytest.mark.parametrize("name", DYNAMICS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_computes_in_float32_whatever_the_latents(latents, name, dtype):
    x, v = (tensor.to(dtype) for tensor in latents)
    step, expected = DYNAMICS[name](x, v, 0.61, 0.47), DYNAMICS[name](x.float(), v.float(), 0.61, 0.47)
    assert step.mean.dtype == step.std.dtype == torch.float32
    assert torch.equal(step.mean, expected.mean) and torch.equal(step.std, expected.std)


@pytest.mark.parametrize("name", DYNAMICS)
def test_the_gradient_reaches_the_velocity(latents, name):
    x, v = latents
    v.requires_grad_()
    DYNAMICS[name](x, v, 0.61, 0.47).mean.sum().backward()
    assert v.grad is not None and bool((v.grad != 0).all())


def test_refuses_wrong_noise_levels(latents):
    x, v = latents
    with pytest.raises(ValueError, match="one value for each of 5 rows"):
        ode_step(x, v, torch.ones(3), 0.5)
    with pytest.raises(ValueError, match="noise_level must be at least 0"):
        flow_sde_step(x, v, 0.9, 0.5, -0.1, 0.93)
    with pytest.raises(ValueError, match="eta must be at least 0"):
        dance_sde_step(x, v, 0.9, 0.5, -0.1)
    with pytest.raises(ValueError, match=r"cps must be in \[0, 1\]"):
        cps_step(x, v, 0.9, 0.5, 1.2)
