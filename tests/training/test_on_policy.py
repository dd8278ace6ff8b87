"""The gate before the first update: it passes for every way of drawing samples, and names the step that is broken."""

import itertools
from dataclasses import replace

import pytest
import torch

import diffrl.rollout.denoise as denoising
from diffrl.config.load import make_config
from diffrl.data.sampler import prompt_batch
from diffrl.errors import ConfigError, GuardStop
from diffrl.functional.dynamics import Step
from diffrl.rollout.denoise import velocity_of
from diffrl.rollout.observers import EdgeRecorder
from diffrl.rollout.transition import make_transition
from diffrl.training.session import make_losses
from tests.tiers import daily
from tests.tolerances import NETWORK
from tests.training.harness import flat, make_run, make_trainer, settings, weights_of

DYNAMICS = {
    "flow_sde": {"kind": "flow_sde", "noise_level": 0.7},
    "dance_sde": {"kind": "dance_sde", "eta": 0.3},
    "cps": {"kind": "cps", "noise_level": 0.6},
}
ALL, SPLITS = {"kind": "all"}, {"kind": "splits"}
ROLLOUTS = {  # settings, and the steps that are recorded
    "chains, all": ({"stochastic": ALL}, [0, 1, 2, 3]),
    "chains, window, ab2": ({"stochastic": {"kind": "window", "start": 1, "size": 3}, "solver": "ab2"}, [1, 2, 3]),
    "forest, splits, ab2": (
        {"stochastic": SPLITS, "solver": "ab2", "tree": {"roots": 2, "splits": [0, 2], "branches": [3, 2]}},
        [0, 2],
    ),
    "forest, all": ({"stochastic": ALL, "tree": {"roots": 1, "splits": [1, 3], "correlation": None}}, [0, 1, 2, 3]),
    "chains, stored in bfloat16": (
        {"stochastic": {"kind": "window", "start": 0, "size": 3}, "latents_dtype": "bfloat16"},
        [0, 1, 2],
    ),
    "forest, stored in bfloat16": (
        {"stochastic": SPLITS, "solver": "ab2", "tree": {"roots": 2, "splits": [0, 2]}, "latents_dtype": "bfloat16"},
        [0, 2],
    ),
    "forest, window and splits": (
        {"stochastic": {"kind": "window", "start": 1, "size": 1}, "tree": {"roots": 2, "splits": [3]}},
        [1, 3],
    ),
}
LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_v"]}


@pytest.fixture(scope="module", params=[None, LORA], ids=["full", "lora"])
def trainer(request, random_sd3, tmp_path_factory):
    model = {"family": "sd3", "path": str(random_sd3), "lora": request.param}
    made = make_trainer(settings(random_sd3, tmp_path_factory.mktemp("gate"), model=model))
    generator = torch.Generator().manual_seed(7)
    for parameter in made.session.policy.parameters.values():  # LoRA starts as a zero that would hide mistakes
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return made


ROUNDED = [name for name in ROLLOUTS if "bfloat16" in name]
PAIRS = itertools.product(DYNAMICS, [name for name in ROLLOUTS if name not in ROUNDED])
WAYS = [(*pair, (1.0, 3.0)[number // 4 % 2]) for number, pair in enumerate(PAIRS)]
"""Every dynamics beside every rollout, half of them with guidance; every second one is drawn."""
ROUNDED_WAYS = list(itertools.product(DYNAMICS, ROUNDED, [1.0]))


def rounding(transition, sigmas, steps, latents, guidance_scale):
    """Bound the ratio's error: what rounding moves a velocity by, in deviations of the step, averaged over elements.

    Guidance adds the roundings of both predictions, g and g - 1 times.
    """
    one = latents.new_ones(1, *latents.shape[1:])
    moved = [(transition(one, v * one, sigmas[i][None], sigmas[i + 1][None])) for i in steps for v in (0.0, 1.0)]
    slopes = [float((b.mean - a.mean).abs().max() / a.std) for a, b in zip(moved[::2], moved[1::2], strict=True)]
    return NETWORK * (2 * guidance_scale - 1) * max(1.0, max(slopes) / one.numel() ** 0.5)


@pytest.mark.parametrize(
    ("dynamics", "rollout", "guidance_scale"), daily(WAYS[::2] + ROUNDED_WAYS[::5], WAYS[::4] + ROUNDED_WAYS[::5])
)
def test_an_unchanged_policy_has_ratio_one(trainer, random_sd3, monkeypatch, dynamics, rollout, guidance_scale):
    changes, steps = ROLLOUTS[rollout]
    session = trainer.session
    options = dict(DYNAMICS[dynamics])
    transition = make_transition(options.pop("kind"), session.sigmas, **options)
    latents = torch.empty(1, *session.adapter.latent_shape)
    tolerance = rounding(transition, session.sigmas, steps, latents, guidance_scale)
    data = settings(random_sd3, "unused", train={"micro_batch": 7}, guards={"on_policy_tolerance": tolerance})
    data["rollout"] |= {"dynamics": DYNAMICS[dynamics], "guidance_scale": guidance_scale, "micro_batch": 5, **changes}
    config = make_config(data)
    monkeypatch.setattr(trainer, "config", config)
    monkeypatch.setattr(session, "config", config)
    monkeypatch.setattr(session, "transition", transition)
    monkeypatch.setattr(session, "losses", make_losses(config, transition))
    batch = prompt_batch(session.prompts, 2, 3, 0)
    conditioning = trainer.encode(batch.prompts)
    drawn = trainer.sampling.draw(batch, conditioning).rollout
    predict = velocity_of(session.adapter, conditioning, guidance_scale)
    for micro_batch in (1, 7, 128):
        errors = session.losses[0].objective.on_policy_errors(drawn, predict, micro_batch)
        assert [step for step, _ in errors] == steps
        assert max(error for _, error in errors) < tolerance
    trainer.updater.gate(drawn, [predict] * len(trainer.session.losses))
    assert trainer.updater.on_policy_error < tolerance


def test_noise_that_rounding_would_drown_is_refused(random_sd3, tmp_path):
    """With CPS the last noisy step ends at a noise level of .001, and its deviation is .0008."""
    rollout = {"dynamics": DYNAMICS["cps"], "stochastic": ALL, "latents_dtype": "bfloat16"}
    with pytest.raises(ConfigError, match=r"must be float32 .* bfloat16 and a deviation of 0\.0008\d* at step 3"):
        make_trainer(settings(random_sd3, tmp_path, rollout=rollout))


def with_edges(monkeypatch, change):
    """Let `change` have the rollout's edges before anyone else sees them."""
    edges = EdgeRecorder.edges
    monkeypatch.setattr(EdgeRecorder, "edges", lambda recorder: change(edges(recorder)))


def shifted_density(trainer, monkeypatch):
    """One step was scored with other numbers than those that drew it."""
    with_edges(monkeypatch, lambda e: replace(e, old_log_prob=e.old_log_prob + 1e-3 * (e.edge_step == 2)))


def rounded_after_scoring(trainer, monkeypatch):
    """Latents were scored in float32 and then stored in bfloat16."""
    with_edges(monkeypatch, lambda e: replace(e, stored=e.stored.bfloat16().float()))


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
    sampler = trainer.sampling.sampler()

    def scaled(*args):
        mean, std = sampler.transition(*args)
        return Step(mean, 1.1 * std)

    monkeypatch.setattr(trainer.sampling, "sampler", lambda: replace(sampler, transition=scaled))


def guidance_in_the_update_only(trainer, monkeypatch):
    """The update conditions the network differently."""
    original = denoising.batched_velocity
    monkeypatch.setattr(denoising, "batched_velocity", lambda **call: original(**{**call, "guidance_scale": 2.0}))


CHAINS, TREES = {"roots": 3}, {"roots": 2, "splits": [2]}


@pytest.mark.parametrize(
    ("breakage", "step", "tree"),
    [
        (shifted_density, 2, TREES),
        (rounded_after_scoring, 1, CHAINS),
        (dropout_in_the_update, 1, CHAINS),
        (noise_scaled_in_the_rollout_only, 1, TREES),
        (guidance_in_the_update_only, 1, CHAINS),
    ],
)
def test_the_gate_stops_a_run_that_is_not_on_policy(random_sd3, tmp_path, monkeypatch, breakage, step, tree):
    data = settings(random_sd3, tmp_path)
    data["rollout"] |= {"tree": tree}
    trainer, run = make_run(data)
    breakage(trainer, monkeypatch)
    before = flat(weights_of(trainer))
    sigma = float(trainer.session.sigmas[step])
    with pytest.raises(GuardStop, match=rf"It breaks at step {step} \(sigma {sigma:.3f}\)\. .*Usual causes"):
        run.run()
    assert torch.equal(flat(weights_of(trainer)), before) and not trainer.session.optimizer.state
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_higher_tolerance_lets_it_pass(random_sd3, tmp_path, monkeypatch):
    trainer, run = make_run(settings(random_sd3, tmp_path, guards={"on_policy_tolerance": 0.01}))
    shifted_density(trainer, monkeypatch)
    run.run()
    assert trainer.updater.on_policy_error == pytest.approx(1e-3, rel=0.01)


def test_a_nan_ratio_never_passes(random_sd3, tmp_path, monkeypatch):
    trainer, run = make_run(settings(random_sd3, tmp_path, guards={"on_policy_tolerance": 1e9}))
    with_edges(monkeypatch, lambda e: replace(e, old_log_prob=e.old_log_prob.masked_fill(e.edge_step == 2, torch.nan)))
    with pytest.raises(GuardStop, match="breaks at step 2 .*step 2: nan"):
        run.run()
