"""DiffusionART: the direction by loops over pairs, the loss by autograd, its states by a hand-made rollout."""

import itertools

import pytest
import torch

from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError
from diffrl.functional.covariance import prompt_direction
from diffrl.functional.losses import art_loss
from diffrl.models.adapter import take_rows
from diffrl.training.gradient import minibatches
from tests.tiers import daily
from tests.tolerances import NETWORK
from tests.training.harness import distance, flat, make_trainer, settings, weights_of

NO_NOISE = {"dynamics": None, "stochastic": {"kind": "none"}, "tree": {"roots": 4}}
STEPS = {"dynamics": {"kind": "flow_sde", "noise_level": 0.7}, "stochastic": {"kind": "all"}}


def art(pipeline, directory, levels=5, step=0.1, **changes):
    data = settings(pipeline, directory, **changes)
    data["objective"] = {"kind": "art", "levels": levels, "step": step}
    data["rollout"] |= NO_NOISE
    return data


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_direction_is_a_prompts_covariance_at_unit_size():
    x0, reward, prompt = numbers(9, 2, 3), numbers(9, seed=1), torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    reward[7:] = 1.5
    found = prompt_direction(x0, reward, prompt, 4)
    for row, members in enumerate(([0, 1, 2, 3], [4, 5, 6])):
        pairs = [
            (reward[i] - reward[j]).double() * (x0[i] - x0[j]).double() for i, j in itertools.combinations(members, 2)
        ]
        total = torch.stack(pairs).sum(0)
        torch.testing.assert_close(found[row].double(), total / total.square().mean().sqrt(), rtol=1e-4, atol=1e-5)
    assert not found[2:].any()  # equal rewards, and no samples


def test_the_loss_is_the_regression_to_a_frozen_target():
    v, v_old, x, direction = (numbers(3, 2, 5, seed=s).double() for s in range(4))
    sigma = torch.tensor([1.0, 0.6, 0.2])
    level = sigma.double().reshape(3, 1, 1)
    live = v.clone().requires_grad_()
    loss, metrics = art_loss(live, v_old, sigma, direction, 0.3)
    wanted = v.clone().requires_grad_()
    target = (x - level * v_old) + 0.3 * direction
    expected = ((x - level * wanted) - target).square().mean((1, 2))
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    (found,), (gradient,) = (torch.autograd.grad(total.sum(), [at]) for total, at in ((loss, live), (expected, wanted)))
    torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(metrics["target_gap"].double(), expected.sqrt().detach(), rtol=1e-5, atol=1e-6)
    own = v_old.float().clone().requires_grad_()
    loss, metrics = art_loss(own, v_old.float(), sigma, direction.float(), 0.3)
    (found,) = torch.autograd.grad(loss.sum(), [own])
    along = 2 * 0.3 * level.float() * direction.float() / 10  # at the old policy: along the direction alone
    torch.testing.assert_close(found, along, rtol=1e-5, atol=1e-7)
    assert not metrics["moved"].any()
    for wrong, message in (((v[:2], v_old, sigma, direction, 0.3), "one shape"), ((v, v, sigma, v, 0.0), "above 0")):
        with pytest.raises(ValueError, match=message):
            art_loss(*wrong)


@pytest.mark.parametrize(
    ("levels", "solver", "guidance", "at_once"),
    daily([(5, "ode", 1.0, None), (2, "ab2", 3.0, 1)], [(2, "ab2", 3.0, 1)]),
)
def test_it_trains_at_the_states_that_its_rollout_went_through(
    random_sd3, tmp_path, monkeypatch, levels, solver, guidance, at_once
):
    """The states by another walk from the same noise, the first update by autograd of the definition there."""
    data = art(random_sd3, tmp_path, levels, train={"updates_per_iteration": 1, "micro_batch": 5})
    data["rollout"] |= {"solver": solver, "guidance_scale": guidance, "prompts_at_once": at_once, "micro_batch": 3}
    trainer = make_trainer(data)
    adapter, policy, kept, gradients = trainer.session.adapter, trainer.session.policy, [], []
    examples = trainer.updater.examples
    monkeypatch.setattr(
        trainer.updater, "examples", lambda *args: kept.append((args[:2], examples(*args))) or kept[-1][1]
    )
    take = trainer.session.optimizer.step
    monkeypatch.setattr(
        trainer.session.optimizer,
        "step",
        lambda: (gradients.append(flat({n: p.grad.clone() for n, p in policy.parameters.items()})), take())[1],
    )
    before = policy.state()
    before = {name: tensor.clone() for name, tensor in before.items()}
    trainer.iterate()
    (((rollout, credit), (taken,)),) = kept
    after, names = weights_of(trainer), list(policy.parameters)
    for name in names:
        policy.parameters[name].data.copy_(before[name])
    grid, samples = rollout.sigmas, len(rollout)
    latents, old = (one.reshape(samples, levels, *one.shape[1:]) for one in (taken.latents, taken.old_velocity))
    assert torch.equal(taken.sigma.reshape(samples, levels), grid[:levels].expand(samples, -1))
    for k in range(levels - 1):  # Euler, and Adams-Bashforth on an uneven grid from the second step on
        h, slope = grid[k + 1] - grid[k], old[:, k]
        if solver == "ab2" and k:
            slope = slope + h / (2 * (grid[k] - grid[k - 1])) * (slope - old[:, k - 1])
        torch.testing.assert_close(latents[:, k + 1], latents[:, k] + h * slope, rtol=1e-4, atol=1e-5)
    assert len(latents) == 8 and len({tuple(one.flatten().tolist()) for one in latents[:, 0]}) == 8
    direction = prompt_direction(rollout.latents, credit.outcome, rollout.forest.sample_prompt, 2)
    assert torch.equal(taken.direction, direction[taken.prompt]) and bool(taken.active.all())
    assert trainer.updater.updates == 1 and not torch.equal(flat(after), flat(before))
    (found,) = gradients
    conditioning = trainer.encoded(rollout.batch)
    velocity = adapter.velocity(taken.latents, taken.sigma, take_rows(conditioning, taken.prompt), guidance)
    assert distance(velocity.detach(), taken.old_velocity) < 4 * NETWORK
    level = taken.sigma.reshape(-1, 1, 1, 1)
    gap = level * (taken.old_velocity - velocity) - 0.1 * taken.direction
    wanted = torch.autograd.grad(gap.square().mean(), [policy.parameters[n] for n in names], allow_unused=True)
    expected = {n: torch.zeros_like(before[n]) if g is None else g for n, g in zip(names, wanted, strict=True)}
    assert distance(found, flat(expected)) < 1e-3 and float(found.norm()) > 0


def test_two_updates_share_out_whole_trajectories_of_every_prompt(random_sd3, tmp_path, monkeypatch):
    trainer, shares = make_trainer(art(random_sd3, tmp_path, 3)), []
    monkeypatch.setattr(
        "diffrl.training.update.minibatches", lambda *args: shares.append((args, minibatches(*args))) or shares[-1][1]
    )
    metrics = trainer.iterate().metrics
    (((prompt, *_, cell), dealt),) = shares
    for share in dealt:
        assert torch.equal(torch.bincount(prompt[share]), torch.tensor([6, 6]))  # two of four, three states each
        assert torch.equal(torch.unique(cell[share], return_counts=True)[1], torch.full((4,), 3))
    assert not set(cell[dealt[0]].tolist()) & set(cell[dealt[1]].tolist())
    assert make_plan(trainer.config).examples_per_update == (12, 12)
    assert metrics["update/moved"] > 0 and metrics["update/target_gap"] < 0.11


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("rollout", STEPS, "rollout.stochastic.kind must be none with objective.kind: art"),
        ("rollout", {"draw": {"precision": "bfloat16"}}, "rollout.draw must be null with objective.kind: art, whose"),
        ("objective", {"levels": 6}, "objective.levels must be <= rollout.steps with objective.kind: art"),
        ("train", {"updates_per_iteration": 5}, "train.updates_per_iteration must be <= what one prompt has to train"),
    ],
)
def test_what_contradicts_it_is_refused(random_sd3, tmp_path, section, change, message):
    data = art(random_sd3, tmp_path)
    data[section] |= change
    with pytest.raises(ConfigError, match=message):
        make_config(data)
