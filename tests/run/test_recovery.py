"""A run that goes back to its newest healthy checkpoint: which one, with what, how often, and killed on the way."""

import json
import shutil

import pytest
import torch

import diffrl.run.execution as execution
import diffrl.run.journal as journal
from diffrl.checkpoint.files import load_checkpoint
from diffrl.config.idle import unused_keys
from diffrl.config.load import make_config
from diffrl.cost.plan import recovery_notes
from diffrl.errors import CheckpointError, ConfigError, GuardStop
from diffrl.run.checkpoints import HEALTHY, NEWEST, Choice, choose_checkpoint
from diffrl.run.resume import require_state
from diffrl.tracking.health import health_of, read_health
from diffrl.training.loop import Trainer
from tests.run.test_resume import crashing
from tests.tiers import daily
from tests.training.harness import BRIGHTNESS, assert_same_run, go_on, rows_of, settings, start

ALARMED = {"sharpness": 1.0000001, "diversity": 0.0, "held_out_drop": 1e9}
"""Any difference in sharpness from the first samples is an alarm."""
CALM = ALARMED | {"sharpness": 1e9}


def recovering(pipeline, directory, hacking, iterations=6, recover=None, every=1, **changes):
    """Full fine-tuning with averages and a cosine; all checkpoints are kept."""
    data = settings(
        pipeline,
        directory,
        train={"learning_rate": 1e-3, "schedule": "cosine", "ema": {"decay": 0.7}},
        guards={"reward_hacking": hacking, "recover": recover or {"times": 2, "rate": 0.25}},
        **changes,
    )
    data["run"] |= {"iterations": iterations, "eval_every": every, "checkpoint_every": every, "keep_checkpoints": None}
    return data


def at(run, step):
    return load_checkpoint(run / f"checkpoints/step-{step:06d}")


def equal(one, other, group):
    return all(torch.equal(tensor, other.tensors[group][name]) for name, tensor in one.tensors[group].items())


def turned_bad(pipeline, directory):
    """Healthy up to iteration 2, an alarm at every evaluation from 3 on."""
    start(recovering(pipeline, directory, CALM, iterations=2))
    shown = go_on(directory / "run", "run.iterations=6", "guards.reward_hacking.sharpness=1.0000001")
    return directory / "run", shown


def test_it_goes_on_from_the_newest_healthy_weights_at_a_lower_rate(random_sd3, tmp_path):
    run, shown = turned_bad(random_sd3, tmp_path)
    assert shown.count("The run goes on from iteration 2, the newest healthy checkpoint") == 2
    assert "(guards.recover; 1 left)" in shown and "Until it is well again" in shown  # and then the action follows
    rows = rows_of(run)
    assert [row.get("sentinel/back_to") for row in rows] == [None, None, None, 2, 2, None, None]
    for step in (3, 4):
        assert all(equal(at(run, step), at(run, 2), group) for group in ("policy", "ema", "optimizer"))
        assert at(run, step).state["iteration"] == step  # prompts, noise and schedule go on
    assert not equal(at(run, 5), at(run, 2), "policy")
    calm, _ = start(recovering(random_sd3, tmp_path / "calm", CALM))
    rates = [row["update/learning_rate"] / other["update/learning_rate"] for row, other in zip(
        rows[3:], rows_of(calm)[3:], strict=True)]  # fmt: skip
    assert rates == pytest.approx([1, 0.25, 0.0625, 0.0625])


def test_before_anything_is_healthy_it_begins_again_from_the_weights_before_training(random_sd3, tmp_path):
    """Which no command takes for a trained model."""
    data = recovering(random_sd3, tmp_path, ALARMED, iterations=4, every=2)
    run, shown = start(data)
    assert "The run goes on from iteration 0" in shown
    assert equal(at(run, 2), at(run, 0), "policy") and not equal(at(run, 4), at(run, 0), "policy")
    assert not at(run, 0).tensors["optimizer"]
    assert choose_checkpoint(run, make_config(data), NEWEST, print).step == 4
    for step in (2, 4):
        shutil.rmtree(run / f"checkpoints/step-{step:06d}")
    for choice in (NEWEST, HEALTHY, Choice(best=True)):
        with pytest.raises(CheckpointError, match="has no checkpoint yet"):
            choose_checkpoint(run, make_config(data), choice, print)


def test_an_alarm_is_answered_once(random_sd3, tmp_path):
    """Not again in the iterations up to the next evaluation."""
    run, shown = start(
        recovering(random_sd3, tmp_path, ALARMED, iterations=6, every=2, recover={"times": 1, "rate": 0.5})
    )
    rows = rows_of(run)
    assert [row["iteration"] for row in rows if "sentinel/back_to" in row] == [2]
    assert [bool(row.get("sentinel/alarms")) for row in rows if "sentinel/alarms" in row] == [False, True, True, True]
    assert shown.count("This looks like") == 3 and shown.count("Until it is well again") == 2


def test_the_last_iteration_is_left_as_it_is(random_sd3, tmp_path):
    run, shown = start(recovering(random_sd3, tmp_path, ALARMED, iterations=2))
    assert "goes on from" not in shown and "This looks like" in shown
    assert not equal(at(run, 2), at(run, 1), "policy")


def between_checkpoints(pipeline, directory):
    """Alarms at 2 to 6, checkpoints of 0, 2, 4 and 6: it goes back at 2 and at 3, in all to the weights of 0."""
    data = recovering(pipeline, directory, ALARMED)
    data["run"]["checkpoint_every"] = 2
    return data


@pytest.fixture(scope="module")
def uninterrupted(random_sd3, tmp_path_factory):
    run, _ = start(between_checkpoints(random_sd3, tmp_path_factory.mktemp("straight")))
    assert [row.get("sentinel/back_to") for row in rows_of(run)] == [None, None, 0, 0, None, None, None]
    return run


MOMENTS = {
    "before the weights are back": (Trainer, "recovered", 1, True),
    "while the checkpoint after it is written": (journal, "save_checkpoint", 2, False),
    "in the next iteration": (Trainer, "iterate", 3, True),
}


@pytest.mark.parametrize("moment", daily(MOMENTS, list(MOMENTS)[2:], list(MOMENTS)[1:2]))
def test_killed_around_it_the_run_is_the_same(random_sd3, tmp_path, uninterrupted, moment):
    with crashing(*MOMENTS[moment]):
        start(between_checkpoints(random_sd3, tmp_path))
    go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.long
def test_trees_are_drawn_with_the_weights_that_it_went_back_to(random_sd3, tmp_path):
    """A copy that gets weights every fourth iteration; a crash after the recovery finds the same ones."""
    rollout = {
        "steps": 5,
        "dynamics": {"kind": "flow_sde", "noise_level": 0.7},
        "stochastic": {"kind": "splits"},
        "tree": {"roots": 1, "splits": [0], "branches": 3},
        "draw": {"precision": "nvfp4", "engine": "emulated", "sync_every": 4, "fidelity": {"every": None}},
    }
    trained = {"objective": {"kind": "tilt"}, "rollout": rollout}

    def data(folder):
        made = recovering(random_sd3, tmp_path / folder, ALARMED, iterations=5, recover={"times": 1}, **trained)
        made["train"] = {"learning_rate": 1e-2}
        made["run"]["eval_every"] = 2
        return made

    straight, _ = start(data("straight"))
    assert [row.get("sentinel/back_to") for row in rows_of(straight)] == [None, None, 0, None, None, None]
    with crashing(Trainer, "iterate", 4):
        start(data("killed"))
    go_on(tmp_path / "killed/run")
    assert_same_run(tmp_path / "killed/run", straight)


def test_a_damaged_way_back_stops_the_run(random_sd3, tmp_path):
    run, _ = start(recovering(random_sd3, tmp_path, CALM, iterations=2))
    for step in (0, 1):
        shutil.rmtree(run / f"checkpoints/step-{step:06d}")
    file = run / "checkpoints/step-000002/policy.safetensors"

    kept, original = file.read_bytes(), execution.go_back

    def damaged(*arguments):
        file.write_bytes(kept[:-1])
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "go_back", damaged)
        with pytest.raises(GuardStop, match="So the run cannot go back to it"):
            go_on(run, "run.iterations=4", "guards.reward_hacking.sharpness=1.0000001")


def test_what_it_left_is_no_longer_held_against_the_run():
    """By hand: an alarm at 4, back to 2; healthy at 6. Checkpoint 3 led to the alarm, 4 and 5 come from 2."""
    rows = [
        {"iteration": step, "held_out/r": value, "sentinel/alarms": alarms, **more}
        for step, value, alarms, more in (
            (0, 0.1, 0, {}),
            (2, 0.2, 0, {}),
            (4, 0.9, 1, {"sentinel/collapsed": 1, "sentinel/back_to": 2}),
            (6, 0.3, 0, {}),
        )
    ]
    health = health_of(rows, "r", lower=False)
    assert [health.ailment(step) for step in range(7)] == ["", "", "", "collapsed", "", "", ""]
    assert health.best(range(7)) == 6  # .9 was measured on weights that no checkpoint has
    rows[2].pop("sentinel/back_to")
    health = health_of(rows, "r", lower=False)
    assert [health.ailment(step) for step in range(7)] == ["", "", "", *["collapsed"] * 3, ""]


def test_the_plan_says_what_may_be_lost(random_sd3, tmp_path):
    data = recovering(random_sd3, tmp_path, ALARMED | {"patience": 2}, iterations=1000)
    data["run"] |= {"eval_every": 6, "checkpoint_every": 4}
    (note,) = recovery_notes(make_config(data))  # checkpoints of 4, 8, 12: evaluation 6 is 2 iterations after one
    assert "up to 28 of the 1,000 iterations: 2 times up to 14" in note


def test_what_can_never_act_is_refused_or_said(random_sd3, tmp_path):
    with pytest.raises(ConfigError, match=r"guards.recover needs guards.reward_hacking"):
        make_config(recovering(random_sd3, tmp_path, {"action": "off"}))
    data = recovering(random_sd3, tmp_path, ALARMED, iterations=2)
    data["run"]["eval_every"] = None
    assert any("guards.recover" in note for note in unused_keys(make_config(data)))


def test_the_record_of_a_run_from_before_is_read(random_sd3, tmp_path):
    """A checkpoint without the count of recoveries goes on with none."""
    run, _ = start(recovering(random_sd3, tmp_path, CALM, iterations=1))
    state = at(run, 1).state
    assert state["sentinel"].pop("recoveries") == 0
    require_state(json.loads(json.dumps(state)))
    assert read_health(run, BRIGHTNESS).healthy([0, 1]) == 1
