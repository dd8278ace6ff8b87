"""GRPO's loss over edges against torch.distributions, and what it asks of policy and reference."""

from functools import partial

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from diffrl.functional.dynamics import Step
from diffrl.objectives.grpo import GRPO
from diffrl.records import Edges

SHAPE = (2, 3, 5)
E = 7


def transition(x, v, s, n):
    """A made-up Gaussian step that is easy to follow by hand: mean x - 2 v, std 0.5 + s - n."""
    width = (0.5 + s - n).reshape(-1, 1, 1, 1)
    return Step(x - 2 * v, width)


@pytest.fixture
def edges():
    generator = torch.Generator().manual_seed(11)
    draw = partial(torch.randn, generator=generator)
    sigma = torch.linspace(0.9, 0.4, E)
    index = torch.arange(E)
    return Edges(draw(E, *SHAPE), draw(E, *SHAPE), sigma, sigma - 0.1, index, index % 3, draw(E) * 0.1)


@pytest.fixture
def velocities():
    generator = torch.Generator().manual_seed(13)
    policy = 0.3 * torch.randn(E, *SHAPE, generator=generator)
    return policy, policy + 0.2 * torch.randn(E, *SHAPE, generator=generator)


ADVANTAGE = torch.tensor([1.3, -0.7, 0.0, 2.1, -1.1, 0.4, -0.2])


def normal(edges, i, v):
    return Normal(edges.latents[i] - 2 * v[i], 0.5 + float(edges.sigma[i] - edges.sigma_next[i]))


@pytest.mark.parametrize("kl_form", ["velocity", "mean"])
def test_each_edges_loss_and_gradient(edges, velocities, kl_form):
    policy, reference = velocities
    own, low, high, weight = policy.clone().requires_grad_(), 0.05, 0.11, 0.7
    objective = GRPO(transition, low, high, weight, kl_form)
    old = torch.stack([normal(edges, i, policy).log_prob(edges.next_latents[i]).mean() for i in range(E)])
    edges = Edges(**{**vars(edges), "old_log_prob": old + torch.linspace(-0.2, 0.2, E)})
    loss, metrics = objective.loss(edges, ADVANTAGE, lambda given: own, lambda given: reference)
    loss.sum().backward()

    naive = policy.clone().requires_grad_()
    expected, ratios, distances = [], [], []
    for i in range(E):
        step = normal(edges, i, naive)
        ratio = (step.log_prob(edges.next_latents[i]).mean() - edges.old_log_prob[i]).exp()
        a = float(ADVANTAGE[i])
        surrogate = torch.maximum(-a * ratio, -a * ratio.clamp(1 - low, 1 + high))
        if kl_form == "velocity":
            distance = (naive[i] - reference[i]).square().mean()
        else:
            distance = kl_divergence(step, normal(edges, i, reference)).mean()
        expected.append(surrogate + weight * distance)
        ratios.append(float(ratio.detach()))
        distances.append(float(distance.detach()))
    torch.stack(expected).sum().backward()
    torch.testing.assert_close(loss, torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own.grad, naive.grad, rtol=1e-3, atol=1e-6)
    assert metrics["ratio"].tolist() == pytest.approx(ratios, rel=1e-4)
    assert metrics["reference_kl"].tolist() == pytest.approx(distances, rel=1e-4)
    clipped = [
        (a > 0 and r > 1 + high) or (a < 0 and r < 1 - low) for a, r in zip(ADVANTAGE.tolist(), ratios, strict=True)
    ]
    assert metrics["clipped"].bool().tolist() == clipped and 0 < sum(clipped) < E
    assert all(value.shape == (E,) and not value.requires_grad for value in metrics.values())


def test_without_kl_no_reference_is_asked(edges, velocities):
    objective = GRPO(transition, 0.1, 0.1)
    assert not objective.needs_reference and GRPO(transition, 0.1, 0.1, kl=0.01).needs_reference
    _, metrics = objective.loss(edges, ADVANTAGE, lambda given: velocities[0], None)
    assert "reference_kl" not in metrics


def test_the_policy_is_asked_about_the_edges_at_hand(edges, velocities):
    asked = []

    def policy(given):
        asked.append(given)
        return velocities[0]

    GRPO(transition, 0.1, 0.1).loss(edges, ADVANTAGE, policy, None)
    assert asked == [edges]


def test_log_prob_is_the_mean_density(edges, velocities):
    found = GRPO(transition, 0.1, 0.1).log_prob(edges, velocities[0])
    expected = [float(normal(edges, i, velocities[0]).log_prob(edges.next_latents[i]).mean()) for i in range(E)]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
