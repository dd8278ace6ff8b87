"""AWM, DGPO and CRD in the loop: gradients of whole groups by autograd of the definition, whatever the micro-batch."""

import pytest
import torch

import diffrl.training.update as update
from diffrl.config.load import make_config
from diffrl.cost.meter import network_evaluations
from diffrl.cost.plan import make_plan
from diffrl.models.pipeline import EMPTY
from diffrl.records import Prompt, PromptBatch
from diffrl.training.gradient import minibatches
from tests.tiers import daily
from tests.tolerances import NETWORK
from tests.training.harness import distance, make_trainer, settings, spy_gradients

NO_NOISE = {"dynamics": None, "stochastic": {"kind": "none"}, "tree": {"roots": 5}}
LAGS = {"old_decay_rate": 0.3, "old_decay_max": 0.6}


def trainer_of(pipeline, directory, train=None, guidance_scale=1.0, **objective):
    data = settings(pipeline, directory, train={"learning_rate": 1e-3, "micro_batch": 3} | (train or {}))
    data["objective"] = objective
    data["rollout"] |= NO_NOISE | {"guidance_scale": guidance_scale}
    return make_trainer(data)


def definition(kind, taken, velocity, reference, beta):
    """The mean loss of an update from its whole groups at once, with gradient through everything."""

    def error(v):
        return (v - taken.target).square().flatten(1).mean(1)

    def distance_to_target(v):
        return (v - taken.target).abs().flatten(1).mean(1).detach()

    total = 0.0
    for cell in taken.cell.unique():
        own = torch.nonzero(taken.cell == cell).flatten()
        if kind == "dgpo":
            s = beta * (taken.advantage * (error(velocity) - error(reference)))[own].mean()
            total = total + len(own) * torch.nn.functional.softplus(s) / beta
        else:
            old = taken.old_velocity
            q = error(old) / distance_to_target(old) - error(velocity) / distance_to_target(velocity)
            gap = beta * (q[own] - q[own].mean()) - (taken.reward[own] - taken.reward[own].mean())
            total = total + 5.0 * gap.square().sum() / beta
    return total / len(taken.cell)


@pytest.mark.parametrize("kind", ["dgpo", "crd"])
def test_every_updates_gradient_is_that_of_its_whole_groups(random_sd3, tmp_path, monkeypatch, kind):
    """Also in the second update, where the policy has left the one that the samples are from."""
    options = {"clip": 0.99} if kind == "dgpo" else {}
    trainer = trainer_of(random_sd3, tmp_path, kind=kind, kl=0.0, levels=3, beta=2.0, **options, **LAGS)
    seen = spy_gradients(
        monkeypatch,
        lambda term, taken, policy, reference: definition(
            kind, taken, policy(*taken.start), reference(*taken.start), 2.0
        ),
    )
    if kind == "crd":  # it keeps no reference without a pull; the definition takes none either
        monkeypatch.setattr(update, "reference_of", lambda policy, predict: torch.no_grad()(predict))
    for _ in range(2):
        trainer.iterate()
    # two prompts of five samples, of three levels two and one
    assert [len(one.taken.cell) for one in seen] == [20, 10] * 2
    for found, expected, *_, taken in seen:
        assert distance(found, expected) < 1e-4 and float(expected.norm()) > 0
        assert torch.equal(torch.unique(taken.cell, return_counts=True)[1], torch.full((len(taken.cell) // 5,), 5))
    gone = [taken.implicit_mean if kind == "crd" else taken.weight - 0.5 for *_, taken in seen]
    assert [float(one.abs().max()) > 4 * NETWORK for one in gone] == [False, True, True, True]


OWN = {"old_decay_max": 0.0}
GUIDED = [("dgpo", LAGS), ("nft", LAGS), ("awm", OWN), ("crd", OWN)]


@pytest.mark.parametrize(("kind", "lags"), daily(GUIDED, GUIDED[:1]))
def test_guided_samples_train_the_conditional_velocity(random_sd3, tmp_path, monkeypatch, kind, lags):
    """The gradient is that of the loss of velocities which the network, called by hand, has for the prompt alone."""
    trainer = trainer_of(random_sd3, tmp_path, kind=kind, kl=0.3, levels=2, guidance_scale=4.5, **lags)
    adapter, encode, encoded = trainer.session.adapter, trainer.encode, []

    def remembered(prompts):
        encoded.append(encode(prompts))
        return encoded[-1]

    def conditional(latents, sigma, prompt):
        own = {name: rows[prompt] for name, rows in encoded[-1].items() if not name.startswith(EMPTY)}
        with trainer.session.meter.purpose("trees"):
            return adapter.predict(latents, sigma, own, 1.0).float()

    def before(latents, sigma, prompt):
        with torch.no_grad(), trainer.session.policy.reference():
            return conditional(latents, sigma, prompt)

    def conditionally(term, taken, policy, reference):
        kept = [getattr(taken, name) for name in ("old_velocity", "reference_velocity") if hasattr(taken, name)]
        if not trainer.updater.updates and lags["old_decay_max"]:
            with torch.no_grad():
                old = conditional(*taken.start)
            assert distance(kept[0][taken.active], old[taken.active]) < 1e-4
        return term.objective.loss(taken, conditional, before)[0].mean()

    monkeypatch.setattr(trainer, "encode", remembered)
    seen = spy_gradients(monkeypatch, conditionally)
    trainer.iterate()
    for found, expected, *_ in seen:
        assert distance(found, expected) < 1e-4 and float(expected.norm()) > 0
    plan, meter = make_plan(trainer.config), trainer.session.meter
    planned = sum(count for name, count in plan.network_evaluations.items() if name != "evaluation")
    assert network_evaluations(meter.state()) + meter.skipped == planned / plan.iterations
    assert plan.network_evaluations["update"] == plan.velocities["update"]
    assert plan.network_evaluations["rollout"] == 2 * plan.velocities["rollout"]


def test_units_of_a_cell_stay_together_and_everyone_trains_once():
    batch = PromptBatch([Prompt("one"), Prompt("two")], [3, 8], 4)
    prompt = torch.tensor([0] * 21 + [1] * 14)
    cell = torch.cat([torch.arange(7).repeat(3), 10 + torch.arange(7).repeat(2)])
    shares = minibatches(prompt, batch, 3, 11, cell)
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(35))
    for one in range(3):
        for other in range(one):
            assert not set(cell[shares[one]].tolist()) & set(cell[shares[other]].tolist())
    assert [len(share) for share in shares] == [3 * 5, 2 * 5, 2 * 5]
    again = minibatches(prompt[21:] - 1, PromptBatch([Prompt("two")], [8], 4), 3, 11, cell[21:])
    assert [set((rows + 21).tolist()) for rows in again] == [{r for r in s.tolist() if r >= 21} for s in shares]


@pytest.mark.parametrize(("kind", "updates", "expected"), [("dgpo", 2, (20, 10)), ("awm", 2, (16, 14))])
def test_the_plan_knows_how_updates_are_dealt(kind, updates, expected, random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, train={"updates_per_iteration": updates})
    data["objective"] = {"kind": kind, "levels": 3}
    data["rollout"] |= NO_NOISE
    assert make_plan(make_config(data)).examples_per_update == expected
