"""The gate before the first update: it passes for every way of drawing samples, and names the step that is broken."""

from dataclasses import replace

import pytest
import torch

import diffrl.rollout.denoise as denoising
import diffrl.rollout.regenerate as regenerating
from diffrl.config.load import make_config
from diffrl.data.sampler import prompt_batch
from diffrl.errors import GuardStop
from diffrl.functional.dynamics import Step
from diffrl.training.update import on_policy_errors, velocity_of
from diffrl.transition import make_transition
from tests.training.harness import flat, make_trainer, settings, weights_of

DYNAMICS = {
    "flow_sde": {"kind": "flow_sde", "noise_level": 0.7},
    "dance_sde": {"kind": "dance_sde", "eta": 0.3},
    "cps": {"kind": "cps", "noise_level": 0.6},
}
STOCHASTIC = {"all": {"kind": "all"}, "window": {"kind": "window", "start": 1, "size": 3}}
LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_v"]}


@pytest.fixture(scope="module", params=[None, LORA], ids=["full", "lora"])
def trainer(request, random_sd3, tmp_path_factory):
    model = {"family": "sd3", "path": str(random_sd3), "lora": request.param}
    made = make_trainer(settings(random_sd3, tmp_path_factory.mktemp("gate"), model=model))
    generator = torch.Generator().manual_seed(7)
    for parameter in made.session.policy.parameters.values():  # LoRA starts as a zero that would hide mistakes
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return made


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@pytest.mark.parametrize("stochastic", STOCHASTIC)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_an_unchanged_policy_has_ratio_one(trainer, random_sd3, monkeypatch, dynamics, stochastic, guidance_scale):
    data = settings(random_sd3, "unused", train={"micro_batch": 7})
    data["rollout"] |= {
        "dynamics": DYNAMICS[dynamics], "stochastic": STOCHASTIC[stochastic], "guidance_scale": guidance_scale,
    }  # fmt: skip
    session = trainer.session
    options = dict(DYNAMICS[dynamics])
    transition = make_transition(options.pop("kind"), session.sigmas, **options)
    monkeypatch.setattr(trainer, "config", make_config(data))
    monkeypatch.setattr(session, "objective", replace(session.objective, transition=transition))
    batch = prompt_batch(session.prompts, 2, 3, 0)
    conditioning = trainer.encode([prompt.text for prompt in batch.prompts])
    rollout = trainer.rollout(batch, conditioning)
    predict = velocity_of(session.adapter, conditioning, rollout, guidance_scale)
    errors = on_policy_errors(session.accelerator, session.objective, rollout.edges, predict, 7)
    assert [step for step, _ in errors] == ([0, 1, 2, 3] if stochastic == "all" else [1, 2, 3])
    assert max(error for _, error in errors) < 1e-5
    trainer.gate(rollout, predict)
    assert trainer.on_policy_error == max(error for _, error in errors)


def with_edges(monkeypatch, change):
    """Let `change` have the rollout's edges before anyone else sees them."""
    original = regenerating.denoise

    def changed(*args, **kwargs):
        latents, edges = original(*args, **kwargs)
        return latents, change(edges)

    monkeypatch.setattr(regenerating, "denoise", changed)


def shifted_density(trainer, monkeypatch):
    """One step was scored with other numbers than those that drew it."""
    with_edges(monkeypatch, lambda e: replace(e, old_log_prob=e.old_log_prob + 1e-3 * (e.step == 2)))


def rounded_after_scoring(trainer, monkeypatch):
    """Latents were scored in float32 and then stored in bfloat16."""
    with_edges(monkeypatch, lambda e: replace(e, next_latents=e.next_latents.bfloat16().float()))


def dropout_in_the_update(trainer, monkeypatch):
    """Something random is active wherever gradients flow."""

    def active_with_gradients(module, inputs):
        module.train(torch.is_grad_enabled())

    for module in trainer.session.policy.inner.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
            module.register_forward_pre_hook(active_with_gradients)


def noise_scaled_in_the_rollout_only(trainer, monkeypatch):
    """The rollout draws and scores with another std than the update."""
    rollout, objective = trainer.rollout, trainer.session.objective

    def scaled(*args):
        mean, std = objective.transition(*args)
        return Step(mean, 1.1 * std)

    def with_scaled_noise(*args):
        trainer.session.objective = replace(objective, transition=scaled)
        try:
            return rollout(*args)
        finally:
            trainer.session.objective = objective

    monkeypatch.setattr(trainer, "rollout", with_scaled_noise)


def guidance_in_the_update_only(trainer, monkeypatch):
    """The update conditions the network differently."""
    original = denoising.batched_velocity
    monkeypatch.setattr(denoising, "batched_velocity", lambda *a: original(*a[:5], 2.0, a[6]))


@pytest.mark.parametrize(
    ("breakage", "step"),
    [
        (shifted_density, 2),
        (rounded_after_scoring, 1),
        (dropout_in_the_update, 1),
        (noise_scaled_in_the_rollout_only, 1),
        (guidance_in_the_update_only, 1),
    ],
)
def test_the_gate_stops_a_run_that_is_not_on_policy(random_sd3, tmp_path, monkeypatch, breakage, step):
    trainer = make_trainer(settings(random_sd3, tmp_path))
    breakage(trainer, monkeypatch)
    before = flat(weights_of(trainer))
    sigma = float(trainer.session.sigmas[step])
    with pytest.raises(GuardStop, match=rf"It breaks at step {step} \(sigma {sigma:.3f}\)\. .*Usual causes"):
        trainer.run()
    assert torch.equal(flat(weights_of(trainer)), before) and not trainer.session.optimizer.state
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_higher_tolerance_lets_it_pass(random_sd3, tmp_path, monkeypatch):
    trainer = make_trainer(settings(random_sd3, tmp_path, guards={"on_policy_tolerance": 0.01}))
    shifted_density(trainer, monkeypatch)
    trainer.run()
    assert trainer.on_policy_error == pytest.approx(1e-3, rel=0.01)


def test_a_nan_ratio_never_passes(random_sd3, tmp_path, monkeypatch):
    trainer = make_trainer(settings(random_sd3, tmp_path, guards={"on_policy_tolerance": 1e9}))
    with_edges(monkeypatch, lambda e: replace(e, old_log_prob=e.old_log_prob.masked_fill(e.step == 2, torch.nan)))
    with pytest.raises(GuardStop, match="breaks at step 2 .*step 2: nan"):
        trainer.run()
