"""The training loop as a whole: reproducible, counted, and its gradient against a naive one."""

import copy
import math

import pytest
import torch
from torch.distributions import Normal

import diffrl.training.loop as loop
from diffrl.models.loading import load_adapter
from diffrl.models.sd3 import SD3Adapter
from diffrl.plan import evaluated_iterations
from diffrl.training.update import reference_of, velocity_of
from tests.training.harness import (
    BRIGHTNESS,
    GREEN,
    assert_same_run,
    distance,
    flat,
    last_checkpoint,
    make_trainer,
    rows_of,
    samples_of,
    settings,
    start,
    weights_of,
)
from tests.training.scorers import Brightness

LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_out.0"]}
SMOOTH = {"learning_rate": 1e-3, "epsilon": 1e-3}
"""Adam divides by |gradient|: rounding noise of weights without gradient would be a full step; epsilon smooths it."""


@pytest.fixture(scope="module")
def baseline(random_sd3, tmp_path_factory):
    run_dir, _ = start(settings(random_sd3, tmp_path_factory.mktemp("baseline")))
    return run_dir


def changed(data, directory, **changes):
    """The settings in another directory, with keys of sections replaced."""
    data = copy.deepcopy(data)
    for section, values in changes.items():
        data[section] = values if isinstance(values, list) else data.get(section, {}) | values
    data["run"]["dir"] = str(directory)
    return data


# --- the same seed, the same run -------------------------------------------------------------------------------------


def test_the_same_seed_is_the_same_run_bit_for_bit(baseline, random_sd3, tmp_path):
    torch.manual_seed(1234)  # nothing may depend on the global generators
    again, _ = start(settings(random_sd3, tmp_path))
    assert rows_of(again) == rows_of(baseline) and len(rows_of(again)) == 3
    assert samples_of(again) == samples_of(baseline) and len(samples_of(again)) == 2 * 6 + 2 * 3
    assert_same_run(again, baseline)


def test_another_seed_is_another_run(baseline, random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path)
    data["run"]["seed"] = 4
    other, _ = start(data)
    assert rows_of(other)[0] == rows_of(baseline)[0]  # the evaluation before training has a seed of its own
    assert rows_of(other)[1]["reward/mean"] != rows_of(baseline)[1]["reward/mean"]
    assert last_checkpoint(other)[1] != last_checkpoint(baseline)[1]


def test_every_pass_and_every_row_is_accounted_for(baseline):
    first, *rest = rows_of(baseline)
    assert first.keys() == {"iteration", f"held_out/{BRIGHTNESS}", f"held_out/{BRIGHTNESS}/top"}
    assert [row["iteration"] for row in rest] == [1, 2]
    assert rest[0]["update/on_policy_error"] < 1e-5 and "update/on_policy_error" not in rest[1]
    assert rest[0]["reward/std"] > 1e-3  # the tests' reward has spread on random pictures
    assert "held_out/" + BRIGHTNESS in rest[1] and "held_out/" + BRIGHTNESS not in rest[0]


@pytest.mark.parametrize(
    "section",
    [
        {"train": {"micro_batch": 1}},
        {"train": {"micro_batch": 5}},
        {"rollout": {"micro_batch": 1}},
        {"rollout": {"micro_batch": 4}},
        {"rollout": {"decode_batch": 1}},
    ],
    ids=str,
)
def test_micro_batches_change_nothing(whole_batch, random_sd3, tmp_path, section):
    start_weights, expected, gradients = whole_batch
    data = settings(random_sd3, tmp_path, train=smooth())
    for name, values in section.items():
        data[name] |= values
    found, own_gradients = trained(data)
    pixels_round = "decode_batch" in section.get("rollout", {})  # one that rounds the other way moves the reward a bit
    rounding = 1e-3 if pixels_round else 1e-4
    for own, other in zip(own_gradients, gradients, strict=True):
        assert distance(own, other) < rounding
    assert distance(found - start_weights, expected - start_weights) < 1e-3
    if not pixels_round:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert distance(expected, start_weights) > 1e-5  # it moved


def smooth():
    return {"updates_per_iteration": 2, **SMOOTH}


def trained(data):
    """Weights after the run, and the first update's gradient."""
    trainer, gradients = make_trainer(data), []
    record_gradients(trainer, gradients)
    trainer.run()
    return flat(weights_of(trainer)), gradients[:1]


def record_gradients(trainer, into):
    step = trainer.session.optimizer.step

    def recorded():
        parameters = trainer.session.policy.parameters
        into.append(flat({name: p.grad.clone() for name, p in parameters.items()}))
        step()

    trainer.session.optimizer.step = recorded


@pytest.fixture(scope="module")
def whole_batch(random_sd3, tmp_path_factory):
    data = settings(random_sd3, tmp_path_factory.mktemp("whole"), train=smooth())
    trainer = make_trainer(changed(data, tmp_path_factory.mktemp("start")))
    return flat(weights_of(trainer)), *trained(data)


# --- the plan is what happens ----------------------------------------------------------------------------------------

CASES = {
    "plain": {},
    "guidance": {"rollout": {"guidance_scale": 2.0}, "eval": {"guidance_scale": 2.0}},
    "kl, full": {"objective": {"kl": 0.1}},
    "kl, lora, guidance": {"objective": {"kl": 0.1}, "model": {"lora": LORA}, "rollout": {"guidance_scale": 2.0}},
    "sliding window": {"rollout": {"stochastic": {"kind": "window", "size": 2, "slide_every": 1}}},
    "uneven micro-batches": {"rollout": {"micro_batch": 5, "decode_batch": 4}, "train": {"micro_batch": 4}},
    "gradient checkpointing": {"train": {"gradient_checkpointing": True}},
    "every step, two rewards": {
        "rollout": {"stochastic": {"kind": "all"}},
        "rewards": [{"name": BRIGHTNESS}, {"name": GREEN}],
        "run": {"eval_every": 1},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_planned_is_what_happens(random_sd3, tmp_path, monkeypatch, case):
    trainer = make_trainer(changed(settings(random_sd3, tmp_path), tmp_path, **merged(CASES[case], random_sd3)))
    plan, counts = trainer.session.plan, dict.fromkeys(("decodes", "reward_calls", "updates", "micro_batches"), 0)

    def count(owner, method, name, amount):
        original = getattr(owner, method)

        def counted(self, *args, **kwargs):
            counts[name] += amount(*args)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, counted)

    count(SD3Adapter, "decode", "decodes", len)
    count(Brightness, "__call__", "reward_calls", lambda batch: len(batch.prompts))
    count(torch.optim.AdamW, "step", "updates", lambda *args: 1)
    count(torch.Tensor, "backward", "micro_batches", lambda *args: 1)
    trainer.run()
    assert trainer.evaluations_total == plan.total_network_evaluations > 0
    assert counts == {
        "decodes": plan.decodes,
        "reward_calls": plan.reward_calls,
        "updates": plan.updates,
        "micro_batches": plan.micro_batches * plan.iterations,
    }


def merged(sections, pipeline):
    """Sections whose untouched keys are those of `settings`."""
    base = settings(pipeline, "unused")
    return {k: v if isinstance(v, list) else base.get(k, {}) | v for k, v in sections.items()}


# --- which weights are trained ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_only_the_trained_weights_move(random_sd3, tmp_path, lora):
    trainer = make_trainer(
        settings(random_sd3, tmp_path, model={"family": "sd3", "path": str(random_sd3), "lora": lora})
    )
    pipeline = trainer.session.adapter.pipeline
    modules = {name: m for name, m in pipeline.components.items() if isinstance(m, torch.nn.Module)}
    everything = {f"{m}.{n}": p for m, module in modules.items() for n, p in module.named_parameters()}
    before = {name: p.detach().clone() for name, p in everything.items()}
    trained_names = {f"transformer.{name}" for name in trainer.session.policy.parameters}
    trainer.run()
    moved = {name for name, p in everything.items() if not torch.equal(p, before[name])}
    still = trained_names - moved
    assert moved <= trained_names
    if lora:
        assert not still
        assert all(".lora_" in name and (".to_q." in name or ".to_out.0." in name) for name in trained_names)
        assert len(trained_names) == 4 * 2 * 2  # four blocks, two layers, A and B
    else:  # the last block throws away what its text queries find, so these have no gradient
        assert trained_names == {f"transformer.{n}" for n, _ in modules["transformer"].named_parameters()}
        assert {name.rpartition(".")[0] for name in still} == {"transformer.transformer_blocks.3.attn.add_q_proj"}


def test_the_lora_reference_is_the_untouched_base_model(random_sd3, tmp_path):
    model = {"family": "sd3", "path": str(random_sd3), "lora": LORA}
    trainer = make_trainer(
        settings(random_sd3, tmp_path, model=model, objective={"kl": 0.1}, train={"learning_rate": 1e-2})
    )
    trainer.run()
    rollout, edges = trainer._rollout, trainer._rollout.edges
    prompts = [prompt.text for prompt in rollout.batch.prompts]
    predict = velocity_of(trainer.session.adapter, trainer.encode(prompts), rollout, 1.0)
    reference = reference_of(trainer.session.policy, predict)(edges)
    base = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    rows = base.encode_prompts([prompts[int(rollout.prompt[s])] for s in edges.sample])
    with torch.no_grad():
        expected, policy = base.velocity(edges.latents, edges.sigma, rows, 1.0), predict(edges)
    torch.testing.assert_close(reference, expected, rtol=1e-4, atol=1e-5)
    assert (policy - expected).abs().max() > 1e-3
    assert all(p.requires_grad for p in trainer.session.policy.parameters.values())


def test_the_average_is_evaluated_and_the_weights_come_back(random_sd3, tmp_path, monkeypatch):
    train = {"learning_rate": 1e-3, "updates_per_iteration": 2, "ema": {"decay": 0.6}}
    trainer = make_trainer(settings(random_sd3, tmp_path, train=train))
    average, live, evaluated = flat(weights_of(trainer)), [], []
    step, evaluate = trainer.session.optimizer.step, loop.evaluate

    def stepped():
        nonlocal average
        step()
        live.append(flat(weights_of(trainer)))
        average = 0.6 * average + 0.4 * live[-1]

    def evaluated_with(*args):
        evaluated.append(flat(weights_of(trainer)))
        return evaluate(*args)

    trainer.session.optimizer.step = stepped
    monkeypatch.setattr(loop, "evaluate", evaluated_with)
    trainer.run()
    assert len(live) == 4 and len(evaluated) == 2
    torch.testing.assert_close(evaluated[-1], average, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(flat(trainer.ema.average), average, rtol=1e-5, atol=1e-7)
    assert torch.equal(flat(weights_of(trainer)), live[-1]) and distance(live[-1], average) > 1e-4


# --- the gradient ----------------------------------------------------------------------------------------------------


def naive_velocity(adapter, network, x, sigma, prompt, guidance_scale):
    found = adapter.encode_prompts([prompt])

    def call(embeds, pooled):
        timestep = torch.tensor([float(sigma) * 1000])
        return network(
            hidden_states=x[None], timestep=timestep, encoder_hidden_states=embeds, pooled_projections=pooled
        ).sample[0]

    conditional = call(found["prompt_embeds"], found["pooled"])
    if guidance_scale == 1:
        return conditional
    unconditional = call(found["negative_embeds"], found["negative_pooled"])
    return unconditional + guidance_scale * (conditional - unconditional)


def naive_step(x, v, s, n, top, level):
    """Flow-GRPO's step, typed from the paper: drift v + g^2 / (2 s) * (x + (1 - s) v), noise g sqrt(s - n)."""
    g = level * math.sqrt(s / (1 - (top if s == 1 else s)))
    return Normal(x - (v + g**2 / (2 * s) * (x + (1 - s) * v)) * (s - n), g * math.sqrt(s - n))


def naive_advantages(rewards, group_size):
    groups = rewards.double().reshape(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, correction=0, keepdim=True) + 1e-4)).flatten()


@pytest.mark.parametrize("kl_form", ["velocity", "mean"])
@pytest.mark.parametrize(("lora", "guidance_scale"), [(None, 1.0), (LORA, 2.5)], ids=["full", "lora guided"])
def test_the_whole_updates_gradient_equals_a_naive_one(
    random_sd3, tmp_path, monkeypatch, lora, guidance_scale, kl_form
):
    """Both updates of the second iteration: the ratio has left 1 and the policy its reference."""
    clip, kl = 2e-4, 3.0
    data = settings(
        random_sd3,
        tmp_path,
        model={"family": "sd3", "path": str(random_sd3), "lora": lora},
        objective={"clip": clip, "kl": kl, "kl_form": kl_form},
        train={"learning_rate": 3e-2 if lora else 3e-4, "micro_batch": 3, "max_grad_norm": None},
    )
    data["rollout"] |= {"guidance_scale": guidance_scale, "stochastic": {"kind": "window", "start": 0, "size": 3}}
    trainer = make_trainer(data)
    session, network = trainer.session, trainer.session.policy.inner
    seen, accumulate = [], loop.accumulate_gradient

    def recorded(accelerator, policy, objective, edges, *rest):
        now = copy.deepcopy(network)
        found = accumulate(accelerator, policy, objective, edges, *rest)
        seen.append((now, edges, {name: p.grad.clone() for name, p in policy.parameters.items()}, found))
        return found

    monkeypatch.setattr(loop, "accumulate_gradient", recorded)
    for _ in range(2):
        trainer.iterate()
        trainer.iteration += 1
    rollout, old = trainer._rollout, seen[2][0]  # nothing was updated between the rollout and its first update
    advantages = naive_advantages(trainer._table.total, 3)
    base = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    top = float(session.sigmas[1])
    clipped = 0
    for now, edges, gradient, found in seen[2:]:
        now.zero_grad()
        losses = []
        for i in range(len(edges)):
            x, following = edges.latents[i], edges.next_latents[i]
            s, n, sample = float(edges.sigma[i]), float(edges.sigma_next[i]), int(edges.sample[i])
            prompt = rollout.batch.prompts[sample // 3].text
            v = naive_velocity(base, now, x, s, prompt, guidance_scale)
            with torch.no_grad():
                v_old = naive_velocity(base, old, x, s, prompt, guidance_scale)
                v_ref = naive_velocity(base, base.transformer, x, s, prompt, guidance_scale)
            step, before, reference = (naive_step(x, u, s, n, top, 0.7) for u in (v, v_old, v_ref))
            ratio = (step.log_prob(following).mean() - before.log_prob(following).mean()).exp()
            a = advantages[sample]
            loss = torch.max(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip))
            clipped += int((a > 0 and ratio > 1 + clip) or (a < 0 and ratio < 1 - clip))
            if kl_form == "velocity":
                loss = loss + kl * (v - v_ref).pow(2).mean()
            else:
                loss = loss + kl * torch.distributions.kl_divergence(step, reference).mean()
            losses.append(float(loss.detach()))
            (loss / len(edges)).backward()
        expected = flat({name: p.grad for name, p in now.named_parameters() if p.requires_grad})
        assert distance(flat(gradient), expected) < 1e-3
        assert found.loss == pytest.approx(sum(losses) / len(edges), rel=1e-3, abs=1e-6)
        assert found.norm == pytest.approx(float(expected.norm()), rel=1e-3)
    assert clipped > 0  # the clip was felt


def test_gradients_are_cut_to_the_norm_and_keep_their_direction(random_sd3, tmp_path):
    found = {}
    for limit in (None, 0.02, 100.0):
        data = settings(random_sd3, tmp_path / str(limit), train={"updates_per_iteration": 1, "max_grad_norm": limit})
        trainer, gradients = make_trainer(data), []
        record_gradients(trainer, gradients)
        found[limit] = (gradients, trainer.iterate()["update/grad_norm"])
    (free,), norm = found[None]
    (cut,), before_cutting = found[0.02]
    assert float(free.norm()) == pytest.approx(norm, rel=1e-5) == before_cutting and norm > 0.04
    assert float(cut.norm()) == pytest.approx(0.02, rel=1e-3)
    assert distance(cut / cut.norm(), free / free.norm()) < 1e-5
    assert torch.equal(found[100.0][0][0], free)


def test_the_learning_rate_follows_its_schedule(random_sd3, tmp_path):
    train = {"learning_rate": 0.01, "updates_per_iteration": 2, "schedule": "cosine", "warmup_updates": 2}
    data = settings(random_sd3, tmp_path, train=train | {"final_learning_rate": 0.2})
    data["run"]["iterations"] = 3
    trainer = make_trainer(data)
    rates, step = [], trainer.session.optimizer.step

    def stepped():
        rates.append(trainer.session.optimizer.param_groups[0]["lr"])
        step()

    trainer.session.optimizer.step = stepped
    trainer.run()
    falling = [0.2 + 0.8 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(4)]
    assert rates == pytest.approx([0.01 * f for f in [0.5, 1.0, *falling]])
    rows = rows_of(tmp_path / "run")
    assert [r["update/learning_rate"] for r in rows[1:]] == pytest.approx(
        [sum(rates[i : i + 2]) / 2 for i in (0, 2, 4)]
    )


@pytest.mark.parametrize("micro_batch", [1, 128])
def test_bfloat16_trains_with_a_tolerance_of_its_own(random_sd3, tmp_path, micro_batch):
    """Rollout and update may see other batch sizes, whose bfloat16 products round differently."""
    data = settings(random_sd3, tmp_path, guards={"on_policy_tolerance": 1e-3}, train={"micro_batch": micro_batch})
    data["model"] |= {"dtype": "bfloat16"}
    trainer = make_trainer(data)
    before = weights_of(trainer)
    assert {tensor.dtype for tensor in before.values()} == {torch.float32}
    trainer.run()
    assert 0 <= trainer.on_policy_error < 1e-3
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights_of(trainer).items())
    assert trainer.session.adapter.pipeline.vae.dtype == torch.bfloat16


@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16}], ids=["full", "lora"])
def test_training_raises_a_reward_that_can_be_learnt(random_sd3, tmp_path, lora):
    data = settings(
        random_sd3,
        tmp_path,
        model={"family": "sd3", "path": str(random_sd3), "lora": lora},
        prompts={"train": "shapes:train", "eval": "shapes:held_out", "per_iteration": 4},
        train={"learning_rate": 1e-3 if lora is None else 1e-2, "updates_per_iteration": 1},
    )
    data["run"] |= {"iterations": 10, "checkpoint_every": 10, "eval_every": None}
    data["rollout"] |= {"tree": {"roots": 8}, "steps": 4, "stochastic": {"kind": "window", "size": 2}}
    trainer = make_trainer(data)
    trainer.run()
    rows = rows_of(tmp_path / "run")
    held_out = [row[f"held_out/{BRIGHTNESS}"] for row in rows if f"held_out/{BRIGHTNESS}" in row]
    assert len(held_out) == 2 and held_out[1] - held_out[0] > 10 * rows[1]["reward/std"]
    assert rows[-1]["reward/mean"] - rows[1]["reward/mean"] > 10 * rows[1]["reward/std"]


def test_only_prompts_that_are_used_are_encoded(random_sd3, tmp_path, monkeypatch):
    encoded, encode = [], SD3Adapter.encode_prompts
    monkeypatch.setattr(SD3Adapter, "encode_prompts", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    make_trainer(settings(random_sd3, tmp_path)).run()
    assert 5 < len(encoded) == len(set(encoded)) <= 5 + 2 * 2  # five held-out ones, two in each of two iterations


def test_evaluations_fall_where_the_configuration_says(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path)
    data["run"] |= {"iterations": 5, "eval_every": 2}
    trainer = make_trainer(data)
    trainer.run()
    evaluated = [row["iteration"] for row in rows_of(tmp_path / "run") if f"held_out/{BRIGHTNESS}" in row]
    assert evaluated == [0, 2, 4, 5] == list(evaluated_iterations(trainer.config))
