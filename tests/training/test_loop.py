"""The training loop as a whole: reproducible, counted, and its gradient against a naive one."""

import copy
import math
import sqlite3

import pytest
import torch

import diffrl.training.loop as loop
from diffrl.cost.meter import network_evaluations
from diffrl.models.families.sd3 import SD3Adapter
from diffrl.models.loading import load_adapter
from diffrl.rollout.denoise import velocity_of
from diffrl.statistics import clustered_estimate
from diffrl.training.optim import learning_rate_factor
from diffrl.training.update import reference_of
from tests.tiers import daily
from tests.training.harness import (
    BRIGHTNESS,
    GREEN,
    assert_same_run,
    distance,
    flat,
    last_checkpoint,
    make_run,
    make_trainer,
    record_gradients,
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
    assert samples_of(again) == samples_of(baseline) and len(samples_of(again)) == 2 * 6 + 2 * 5
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
    held_out = {f"held_out/{BRIGHTNESS}", f"held_out/{BRIGHTNESS}/top", f"held_out_interval/{BRIGHTNESS}"}
    names = ("alarms", "unsafe", "hacked", "collapsed", "blind", "stuck")
    watched = {f"sentinel/change/{BRIGHTNESS}", *(f"sentinel/{name}" for name in names)}
    assert first.keys() == {"iteration", "cost/evaluations"} | held_out | watched
    assert [row["iteration"] for row in rest] == [1, 2]
    assert rest[0]["update/on_policy_error"] < 1e-5 and "update/on_policy_error" not in rest[1]
    assert rest[0]["reward/std"] > 1e-3  # the tests' reward has spread on random pictures
    assert "held_out/" + BRIGHTNESS in rest[1] and "held_out/" + BRIGHTNESS not in rest[0]


def test_a_held_out_mean_has_its_interval_over_prompts(random_sd3, tmp_path):
    """With more samples than prompts, from what the run kept of them."""
    (tmp_path / "three.txt").write_text("one\ntwo\nthree\n")
    few = {"prompts": {"eval": str(tmp_path / "three.txt")}, "eval": {"samples": 6}}
    run_dir, _ = start(changed(settings(random_sd3, tmp_path), tmp_path / "more", **few))
    with sqlite3.connect(run_dir / "samples.sqlite") as database:
        query = (
            "SELECT prompt, raw FROM samples JOIN rewards ON sample_id = id JOIN reward_names ON names = number "
            "WHERE stage = 'eval' AND iteration = 0 AND name = ?"
        )
        prompts, values = zip(*database.execute(query, (BRIGHTNESS,)), strict=True)
    known, row = clustered_estimate(values, prompts), rows_of(run_dir)[0]
    assert len(values) == 6 and known.n == 3
    assert row[f"held_out/{BRIGHTNESS}"] == pytest.approx(known.mean)
    assert row[f"held_out_interval/{BRIGHTNESS}"] == pytest.approx(known.half_width, rel=1e-5)


@pytest.mark.parametrize(
    "section", [{"train": {"micro_batch": 5}}, {"rollout": {"micro_batch": 4, "decode_batch": 1}}], ids=str
)
def test_micro_batches_change_nothing(whole_batch, random_sd3, tmp_path, section):
    start_weights, expected, gradients = whole_batch
    data = settings(random_sd3, tmp_path, train=smooth())
    for name, values in section.items():
        data[name] |= values
    found, own_gradients = trained(data)
    pixels_round = "rollout" in section  # one that rounds the other way moves the reward a bit
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
    (trainer, run), gradients = make_run(data), []
    record_gradients(trainer, gradients)
    run.run()
    return flat(weights_of(trainer)), gradients[:1]


@pytest.fixture(scope="module")
def whole_batch(random_sd3, tmp_path_factory):
    data = settings(random_sd3, tmp_path_factory.mktemp("whole"), train=smooth())
    trainer = make_trainer(changed(data, tmp_path_factory.mktemp("start")))
    return flat(weights_of(trainer)), *trained(data)


# --- the plan is what happens ----------------------------------------------------------------------------------------

CASES = {
    "kl, lora, guidance": {"objective": {"kl": 0.1}, "model": {"lora": LORA}, "rollout": {"guidance_scale": 2.0}},
    "kl to a guided reference": {"objective": {"kl": 0.1, "kl_guidance": 3.0}},
    "uneven micro-batches": {"rollout": {"micro_batch": 5, "decode_batch": 4}, "train": {"micro_batch": 4}},
    "every step, two rewards": {
        "rollout": {"stochastic": {"kind": "all"}},
        "rewards": [{"name": BRIGHTNESS}, {"name": GREEN}],
        "run": {"eval_every": 1},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_planned_is_what_happens(random_sd3, tmp_path, monkeypatch, case):
    data = changed(settings(random_sd3, tmp_path), tmp_path, **merged(CASES[case], random_sd3))
    data["track"]["trees"] = None  # whose pictures are decoded to be looked at, which is no cost of the method
    trainer, run = make_run(data)
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
    run.run()
    found = run.counts
    assert network_evaluations(found) + found["evaluations_skipped"] == plan.total_network_evaluations > 0
    assert (found["decodes"], found["reward_calls"]) == (plan.decodes, plan.reward_calls)
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
    trainer, run = make_run(
        settings(random_sd3, tmp_path, model={"family": "sd3", "path": str(random_sd3), "lora": lora})
    )
    pipeline = trainer.session.adapter.pipeline
    modules = {name: m for name, m in pipeline.components.items() if isinstance(m, torch.nn.Module)}
    everything = {f"{m}.{n}": p for m, module in modules.items() for n, p in module.named_parameters()}
    before = {name: p.detach().clone() for name, p in everything.items()}
    trained_names = {f"transformer.{name}" for name in trainer.session.policy.parameters}
    run.run()
    moved = {name for name, p in everything.items() if not torch.equal(p, before[name])}
    still = trained_names - moved
    assert moved <= trained_names
    if lora:
        assert not still
        assert all(".lora_" in name and (".to_q." in name or ".to_out.0." in name) for name in trained_names)
        assert len(trained_names) == 2 * 2 * 2  # two blocks, two layers, A and B
    else:  # the last block throws away what its text queries find, so these have no gradient
        assert trained_names == {f"transformer.{n}" for n, _ in modules["transformer"].named_parameters()}
        assert {name.rpartition(".")[0] for name in still} == {"transformer.transformer_blocks.1.attn.add_q_proj"}


def test_the_lora_reference_is_the_untouched_base_model(random_sd3, tmp_path):
    model = {"family": "sd3", "path": str(random_sd3), "lora": LORA}
    trainer = make_trainer(
        settings(random_sd3, tmp_path, model=model, objective={"kl": 0.1}, train={"learning_rate": 1e-2})
    )
    done = list(trainer.iterations())[-1]
    rollout, edges = done.samples.rollout, done.samples.rollout.edges
    start = edges.latents, edges.sigma, edges.prompt
    predict = velocity_of(trainer.session.adapter, trainer.encode(rollout.batch.prompts), 1.0)
    reference = reference_of(trainer.session.policy, predict)(*start)
    base = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    prompts = [rollout.batch.prompts[p].text for p in edges.prompt.tolist()]
    rows = base.encode_prompts(prompts)
    with torch.no_grad():
        expected, policy = base.velocity(edges.latents, edges.sigma, rows, 1.0), predict(*start)
    torch.testing.assert_close(reference, expected, rtol=1e-4, atol=1e-5)
    assert (policy - expected).abs().max() > 1e-3
    assert all(p.requires_grad for p in trainer.session.policy.parameters.values())


def test_the_average_is_evaluated_and_the_weights_come_back(random_sd3, tmp_path, monkeypatch):
    train = {"learning_rate": 1e-3, "updates_per_iteration": 2, "ema": {"decay": 0.6}}
    trainer, run = make_run(settings(random_sd3, tmp_path, train=train))
    average, live, evaluated = flat(weights_of(trainer)), [], []
    step, evaluate = trainer.session.optimizer.step, loop.evaluate

    def stepped():
        nonlocal average
        step()
        live.append(flat(weights_of(trainer)))
        average = 0.6 * average + 0.4 * live[-1]

    def evaluated_with(**settings):
        evaluated.append(flat(weights_of(trainer)))
        return evaluate(**settings)

    trainer.session.optimizer.step = stepped
    monkeypatch.setattr(loop, "evaluate", evaluated_with)
    run.run()
    assert len(live) == 4 and len(evaluated) == 2
    torch.testing.assert_close(evaluated[-1], average, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(flat(trainer.updater.ema.average), average, rtol=1e-5, atol=1e-7)
    assert torch.equal(flat(weights_of(trainer)), live[-1]) and distance(live[-1], average) > 1e-4


def test_the_learning_rate_follows_its_schedule(random_sd3, tmp_path):
    train = {"learning_rate": 0.01, "updates_per_iteration": 2, "schedule": "cosine", "warmup_updates": 2}
    data = settings(random_sd3, tmp_path, train=train | {"final_learning_rate": 0.2})
    data["run"]["iterations"] = 3
    trainer, run = make_run(data)
    rates, step = [], trainer.session.optimizer.step

    def stepped():
        rates.append(trainer.session.optimizer.param_groups[0]["lr"])
        step()

    trainer.session.optimizer.step = stepped
    run.run()
    falling = [0.2 + 0.8 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(4)]
    assert rates == pytest.approx([0.01 * f for f in [0.5, 1.0, *falling]])
    rows = rows_of(tmp_path / "run")
    assert [r["update/learning_rate"] for r in rows[1:]] == pytest.approx(
        [sum(rates[i : i + 2]) / 2 for i in (0, 2, 4)]
    )


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_schedules_are_those_of_diffusers_where_they_end_at_nothing(schedule):
    from diffusers.optimization import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(schedule, optimizer, num_warmup_steps=0, num_training_steps=7).lr_lambdas[0]
    ours = [learning_rate_factor(done, 7, schedule, final=0.0) for done in range(7)]
    assert ours == pytest.approx([theirs(done) for done in range(7)])


BFLOAT16 = [(None, 1), ({"rank": 4, "alpha": 8}, 128)]


@pytest.mark.parametrize(("lora", "micro_batch"), daily(BFLOAT16, [], BFLOAT16[:1]), ids=["full", "lora"])
def test_bfloat16_trains_with_a_tolerance_of_its_own(random_sd3, tmp_path, micro_batch, lora):
    """Rollout and update may see other batch sizes, whose bfloat16 products round differently."""
    data = settings(random_sd3, tmp_path, guards={"on_policy_tolerance": 1e-3}, train={"micro_batch": micro_batch})
    data["model"] |= {"dtype": "bfloat16", "lora": lora}
    trainer, run = make_run(data)
    before = weights_of(trainer)
    assert {tensor.dtype for tensor in before.values()} == {torch.float32}
    run.run()
    assert 0 <= trainer.updater.on_policy_error < 1e-3
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights_of(trainer).items())
    assert trainer.session.adapter.pipeline.vae.dtype == torch.bfloat16


@pytest.mark.long
def test_training_raises_a_reward_that_can_be_learnt(random_sd3, tmp_path):
    data = settings(
        random_sd3,
        tmp_path,
        model={"family": "sd3", "path": str(random_sd3), "lora": {"rank": 8, "alpha": 16}},
        prompts={"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 4},
        train={"learning_rate": 1e-2, "updates_per_iteration": 1},
    )
    data["run"] |= {"iterations": 10, "checkpoint_every": 10, "eval_every": None}
    data["rollout"] |= {"tree": {"roots": 8}, "steps": 4, "stochastic": {"kind": "window", "size": 2}}
    trainer, run = make_run(data)
    run.run()
    rows = rows_of(tmp_path / "run")
    held_out = [row[f"held_out/{BRIGHTNESS}"] for row in rows if f"held_out/{BRIGHTNESS}" in row]
    assert len(held_out) == 2 and held_out[1] - held_out[0] > 10 * rows[1]["reward/std"]
    assert rows[-1]["reward/mean"] - rows[1]["reward/mean"] > 10 * rows[1]["reward/std"]


def test_only_prompts_that_are_used_are_encoded(random_sd3, tmp_path, monkeypatch):
    encoded, encode = [], SD3Adapter.encode_prompts
    monkeypatch.setattr(SD3Adapter, "encode_prompts", lambda self, texts: encoded.extend(texts) or encode(self, texts))
    make_run(settings(random_sd3, tmp_path))[1].run()
    assert 5 < len(encoded) == len(set(encoded)) <= 5 + 2 * 2  # five held-out ones, two in each of two iterations
