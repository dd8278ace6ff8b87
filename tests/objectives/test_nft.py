"""DiffusionNFT's examples: reproducible noise, the old policy's velocities, and a gradient typed from the paper."""

from dataclasses import replace

import pytest
import torch

from diffrl.objectives.nft import NFT
from tests.objectives import samples
from tests.objectives.samples import SHAPE, Policy, rollout_of

OUTCOME = torch.tensor([1.3, -0.7, 0.0, 7.0, -9.0, 0.4])


@pytest.fixture
def rollout():
    return rollout_of([5, 7], torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(3)))


def examples_of(objective, rollout, outcome=OUTCOME, **options):
    return samples.examples_of(objective, rollout, outcome, **options)


@pytest.mark.parametrize("levels", [1, 3])
def test_the_noise_is_addressed(rollout, levels):
    objective = NFT(seed=11, levels=levels)
    one, again = examples_of(objective, rollout), examples_of(objective, rollout, micro_batch=1)
    assert torch.equal(one.latents, again.latents) and torch.equal(one.sigma, again.sigma)
    assert len({tuple(x.flatten().tolist()) for x in one.latents}) == len(one.sigma) == 6 * levels
    alone = examples_of(objective, rollout_of([7], rollout.latents[3:]), OUTCOME[3:])
    assert torch.equal(alone.latents, one.latents[3 * levels :]) and torch.equal(alone.sigma, one.sigma[3 * levels :])
    assert torch.equal(alone.clean, rollout.latents[3:].repeat_interleave(levels, 0))
    for other in (NFT(seed=12, levels=levels), objective):
        changed = rollout if other is not objective else rollout_of([5, 7], rollout.latents, iteration=5)
        assert not torch.equal(examples_of(other, changed).sigma, one.sigma)


def test_what_the_network_sees_is_the_clean_sample_and_noise_at_its_level(rollout):
    seen = examples_of(NFT(seed=1, levels=2), rollout)
    noise_alone = examples_of(NFT(seed=1, levels=2), rollout_of([5, 7], torch.zeros(6, *SHAPE)))
    clean = rollout.latents.repeat_interleave(2, 0)
    for row, sigma in enumerate(seen.sigma.tolist()):
        expected = noise_alone.latents[row] + (1 - sigma) * clean[row]
        torch.testing.assert_close(seen.latents[row], expected, rtol=1e-5, atol=1e-6)


def test_the_old_policy_is_asked_where_there_is_something_to_learn(rollout):
    old = Policy(0.4)
    examples = examples_of(NFT(seed=1, levels=2), rollout, old=old)
    asked = torch.cat(old.asked)
    active = (OUTCOME != 0).repeat_interleave(2)
    assert torch.equal(examples.active, active) and torch.equal(asked, examples.latents[active])
    assert max(map(len, old.asked)) == 4
    expected = Policy(0.4)(*examples.start)[active].detach()
    torch.testing.assert_close(examples.old_velocity[active], expected)
    assert (examples.old_velocity[~active] == 0).all() and examples.terms.tolist() == [1] * 12


def test_with_a_reference_samples_without_advantage_are_pulled_too(rollout):
    assert examples_of(NFT(seed=1, kl=0.1), rollout).active.all()
    assert not examples_of(NFT(seed=1, kl=0.1), rollout, used=False).active.any()


@pytest.mark.parametrize(("beta", "kl"), [(1.0, 0.0), (0.6, 0.3)])
def test_loss_and_gradient_are_the_papers(rollout, beta, kl):
    objective, policy, old, reference = NFT(1, kl, beta=beta), Policy(0.5), Policy(0.4), Policy(0.1)
    examples = examples_of(objective, rollout, old=old)
    loss, metrics = objective.loss(examples, policy, reference if kl else None)
    loss.sum().backward()
    naive, total = Policy(0.5), []
    for i in range(6):
        if not examples.active[i]:
            total.append(None)
            continue
        at = tuple(column[i : i + 1] for column in examples.start)
        x, sigma, clean = at[0][0].double(), float(at[1]), rollout.latents[i].double()
        v, before, start = naive(*at)[0].double(), old(*at)[0].detach().double(), reference(*at)[0].detach().double()
        r = min(max(min(max(float(OUTCOME[i]), -5), 5) / 10 + 0.5, 0), 1)
        plus, minus = (x - sigma * (beta * v + (1 - beta) * before), x - sigma * ((1 + beta) * before - beta * v))
        parts = []
        for found in (plus, minus):
            parts.append((found - clean).square().mean() / max(float((found.detach() - clean).abs().mean()), 1e-5))
        total.append(5 * (r * parts[0] + (1 - r) * parts[1]) / beta + kl * (v - start).square().mean())
    active = [i for i in range(6) if total[i] is not None]
    torch.stack([total[i] for i in active]).sum().backward()
    assert loss[active].tolist() == pytest.approx([float(total[i].detach()) for i in active], rel=1e-4)
    if kl:
        assert active == list(range(6))
        assert float(policy.weight.grad) == pytest.approx(float(naive.weight.grad), rel=1e-4)
    assert metrics.keys() == set(objective.metrics)


def test_samples_that_are_missing_leave_the_others_alone(rollout):
    """After a choice a prompt may have any number of samples."""
    few = replace(rollout.forest, leaf=rollout.forest.leaf[torch.tensor([0, 2, 3])])
    smaller = replace(rollout, forest=few, latents=rollout.latents[[0, 2, 3]])
    examples = examples_of(NFT(seed=1), smaller, OUTCOME[[0, 1, 3]])
    assert examples.prompt.tolist() == [0, 0, 1] and examples.active.all()
