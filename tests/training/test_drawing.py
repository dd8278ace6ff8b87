"""Trees drawn by a low-precision copy: whose weights draw, what is recorded and audited, and runs that go on."""

import itertools
import math

import pytest
import torch

from diffrl.config.load import make_config
from diffrl.errors import ConfigError, GuardStop
from diffrl.precision.choice import sums_int8_exactly
from diffrl.rollout.tree import plan_forest
from diffrl.training.drawing import FidelityWatch, mean_cosine, taught
from diffrl.training.loop import Trainer
from tests.run.test_resume import assert_same_run, crashing
from tests.training.harness import flat, go_on, make_run, make_trainer, start, weights_of
from tests.training.test_tilt_training import LORA, tilt_data

NVFP4 = {"precision": "nvfp4", "engine": "emulated"}
INT8 = {"precision": "int8", "engine": "emulated"}
REAL_INT8 = {"precision": "int8"}


def drawn_data(pipeline, directory, draw=NVFP4, **changes):
    data = tilt_data(pipeline, directory, **changes)
    data["rollout"]["draw"] = draw
    return data


# --- who draws -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "at_once"),
    [
        (NVFP4, 1),
        pytest.param(REAL_INT8, None, marks=pytest.mark.long),
        pytest.param({"precision": "bfloat16"}, None, marks=pytest.mark.long),
    ],
)
def test_the_copy_draws_and_the_gate_sees_its_densities(random_sd3, tmp_path, draw, at_once):
    """A ratio of 1 of the copy that drew, to the last bit in the rollout's own calls; not under the policy."""
    if draw is REAL_INT8 and not sums_int8_exactly():
        pytest.skip("this CPU has no product of int8")
    data = drawn_data(random_sd3, tmp_path, draw, train={"micro_batch": 2, "updates_per_iteration": 1})
    data["rollout"] |= {"micro_batch": 3, "prompts_at_once": at_once}
    trainer = make_trainer(data)
    done = trainer.iterate()
    meter, forest = trainer.session.meter, done.samples.rollout.forest
    assert done.metrics["update/on_policy_error"] == 0
    trainer.updater.updates = 0
    with pytest.raises(GuardStop, match="the ratio must be 1"):
        trainer.updater.gate(
            done.samples.rollout, trainer.updater.velocities(trainer.encoded(done.samples.rollout.batch))
        )
    assert meter.by_precision[draw["precision"]] > meter.evaluations["rollout"] > len(forest.parent)
    assert 0 < done.metrics["draw/prediction_error"] < 1 and -1 <= done.metrics["draw/cosine"] <= 1
    engine = draw.get("engine", "torch")
    assert done.samples.sampled_by == {"precision": draw["precision"], "engine": engine, "age": 0}


def test_what_trains_is_evaluated_by_the_policy(random_sd3, tmp_path):
    trainer = make_trainer(drawn_data(random_sd3, tmp_path, NVFP4 | {"fidelity": {"every": None}}))
    trainer.iterate()
    meter = trainer.session.meter
    assert meter.by_precision["nvfp4"] == meter.evaluations["rollout"] + meter.evaluations["gate"]
    assert meter.by_precision["float32"] == meter.evaluations["update"] > 0 and meter.evaluations["audit"] == 0


def test_the_weights_that_draw_are_those_of_the_last_transfer(random_sd3, tmp_path, monkeypatch):
    """Of every third iteration; the copy is asked for nothing else in between."""
    model = {"family": "sd3", "path": str(random_sd3), "lora": LORA}
    data = drawn_data(random_sd3, tmp_path, INT8 | {"sync_every": 3}, model=model, run={"iterations": 5})
    trainer = make_trainer(data)
    copy, arrived = trainer.session.copy, []
    sync = copy.sync_weights
    monkeypatch.setattr(
        copy, "sync_weights", lambda source: (arrived.append(flat(weights_of(trainer))), sync(source))[1]
    )
    before, ages = [], []
    for _ in range(5):
        before.append(flat(weights_of(trainer)))
        ages.append(trainer.iterate().samples.sampled_by["age"])
    assert ages == [0, 1, 2, 0, 1] and len(arrived) == 2
    assert torch.equal(arrived[0], before[0]) and torch.equal(arrived[1], before[3])
    assert not torch.equal(before[0], before[3])


def test_a_run_whose_copy_lags_resumes_bit_for_bit(random_sd3, tmp_path):
    draw = INT8 | {"sync_every": 3, "fidelity": {"every": 2}}
    every = {"iterations": 5, "checkpoint_every": 1}
    straight, _ = start(drawn_data(random_sd3, tmp_path / "straight", draw, run=every))
    with crashing(Trainer, "iterate", 3):
        start(drawn_data(random_sd3, tmp_path / "broken", draw, run=every))
    broken = tmp_path / "broken" / "run"
    go_on(broken)
    assert_same_run(broken, straight)


# --- audits ----------------------------------------------------------------------------------------------------------


def test_a_copy_that_computes_as_the_policy_teaches_the_same(random_sd3, tmp_path):
    """The policy in the copy's place: cosine 1, error 0."""
    trainer = make_trainer(drawn_data(random_sd3, tmp_path, INT8))
    trainer.session.copy.module = trainer.session.adapter.transformer
    metrics = trainer.iterate().metrics
    assert metrics["draw/cosine"] == pytest.approx(1.0, abs=1e-6) and metrics["draw/prediction_error"] == 0


@pytest.mark.parametrize(
    ("action", "watch", "told"),
    [
        ("warn", FidelityWatch(), "take a wider precision"),
        ("sync", FidelityWatch(synced=True), "gets the policy's weights in every iteration"),
        ("fall_back", FidelityWatch(fallen_back=True), "the policy itself draws"),
    ],
)
def test_what_is_done_about_a_low_cosine(random_sd3, tmp_path, monkeypatch, action, watch, told):
    fidelity = {"every": 1, "below": 0.5, "action": action, "patience": 2}
    trainer, run = make_run(drawn_data(random_sd3, tmp_path, INT8 | {"sync_every": 5, "fidelity": fidelity}))
    cosines = itertools.chain([0.4, 0.6, 0.4, 0.4], itertools.repeat(0.9))
    monkeypatch.setattr("diffrl.training.sampling.mean_cosine", lambda *args: next(cosines))
    trainer.config.run.__dict__["iterations"] = 6
    drawn = [trainer.iterate().samples.sampled_by for _ in range(6)]
    assert trainer.sampling.watch == watch and told in run.shown.getvalue()
    assert run.shown.getvalue().count("(rollout.draw.fidelity)") == 1
    ages = [None if one is None else one["age"] for one in drawn]
    expected = {"warn": [0, 1, 2, 3, 4, 0], "sync": [0, 1, 2, 3, 0, 0], "fall_back": [0, 1, 2, 3, None, None]}
    assert ages == expected[action]


def pairwise(latents, reward, groups):
    """The mean over pairs of leaves below different children, by a loop; groups: node -> list of (leaf, child)."""
    rows = []
    for below in groups:
        total, pairs = torch.zeros(latents[0].numel(), dtype=torch.float64), 0
        for (i, one), (j, other) in itertools.combinations(below, 2):
            if one != other and math.isfinite(reward[i]) and math.isfinite(reward[j]):
                difference = (latents[i] - latents[j]).double().flatten()
                total, pairs = total + (reward[i] - reward[j]).double() * difference / 2, pairs + 1
        if pairs:
            rows.append(total / pairs)
    return torch.stack(rows)


def test_what_is_taught_is_the_covariance_below_each_split_and_over_chains():
    generator = torch.Generator().manual_seed(5)
    forest = plan_forest(2, 3, {0: 2, 2: 3})
    latents, reward = torch.randn(36, 5, 7, generator=generator), torch.randn(36, generator=generator)
    reward[4] = math.nan
    groups = {}
    for leaf, node in enumerate(forest.leaf.tolist()):
        while (above := int(forest.parent[node])) >= 0:
            groups.setdefault(above, []).append((leaf, node))
            node = above
    found = taught(forest, latents, reward)
    expected = pairwise(latents, reward, groups.values())
    assert found.shape == expected.shape == (6 + 12, 35)
    ordered = lambda rows: rows[rows.double()[:, 0].argsort()].double()  # noqa: E731
    torch.testing.assert_close(ordered(found), ordered(expected), rtol=1e-4, atol=1e-6)
    chains = plan_forest(2, 5, {1: 1})
    found = taught(chains, latents[:10], reward[:10])
    expected = pairwise(latents, reward, [[(i, i) for i in range(5)], [(i, i) for i in range(5, 10)]])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


def test_a_cosine_is_of_what_both_teach():
    one = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    other = torch.tensor([[0.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
    assert mean_cosine(one, other) == pytest.approx(0.5) and math.isnan(mean_cosine(one[1:2], other[1:2]))


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": {"kind": "grpo"}}, "rollout.draw must be null with objective.kind: grpo, whose ratio needs the"),
        (
            {"objective": {"kind": "nft", "old_decay_max": 0.0, "edges": {}}},
            "rollout.draw must be null with objective.kind: nft",
        ),
        ({"draw": NVFP4 | {"precision": "training"}}, "rollout.draw.precision must be one of"),
        ({"draw": {"precision": "bfloat16", "engine": "emulated"}}, "rollout.draw.engine must be auto with precision"),
        ({"draw": NVFP4 | {"sync_every": 0}}, "rollout.draw.sync_every must be >= 1"),
        ({"draw": INT8 | {"fidelity": {"every": None, "action": "sync"}}}, "fidelity.action must be left at warn"),
        ({"explore": {"precision": "int8", "candidates": 24, "keep": 12}}, "rollout.draw must be null with rollout"),
        ({"model": {"base_precision": "int8", "lora": LORA}}, "rollout.draw must be null with model.base_precision"),
    ],
)
def test_what_contradicts_it_is_refused(random_sd3, tmp_path, change, message):
    data = drawn_data(random_sd3, tmp_path)
    for name, value in change.items():
        if name in ("draw", "explore"):
            data["rollout"][name] = value
        elif name == "model":
            data["model"] |= value
        else:
            data[name] = value
    with pytest.raises(ConfigError, match=message):
        make_config(data)
