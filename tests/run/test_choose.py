"""Which checkpoint is meant: exactly the one that was asked for, or a sentence."""

import json
import os

import pytest
import torch

from diffrl.checkpoint.files import save_checkpoint
from diffrl.config.load import make_config
from diffrl.errors import CheckpointError, ConfigError
from diffrl.run.checkpoints import HEALTHY, NEWEST, Choice, choose_checkpoint, require_choice
from diffrl.tracking.health import read_health
from diffrl.tracking.metrics import MetricsLog

BEST = Choice(best=True)


@pytest.fixture
def run(tmp_path):
    """Checkpoints of 4, 8 and 12; held-out values after 0, 2, 4, 8 and, as null, after 12."""
    for step in (4, 8, 12):
        save_checkpoint(tmp_path / "checkpoints", step, {"policy": {"w": torch.full((2,), float(step))}}, {})
    evaluate(tmp_path, {0: 0.1, 2: 0.3, 4: 0.7, 8: 0.5, 12: float("nan")})
    return tmp_path


def evaluate(run, values, **ailments):
    """A row an iteration; `hacked=(8,)` is an alarm of that name at the evaluation after 8, and so on."""
    (run / "metrics.jsonl").unlink(missing_ok=True)
    with MetricsLog(run / "metrics.jsonl") as log:
        for step in range(13):
            row = {"iteration": step}
            if step in values:
                alarms = {f"sentinel/{name}": int(step in steps) for name, steps in ailments.items()}
                row |= {"held_out/shapes": values[step], "sentinel/alarms": sum(alarms.values()), **alarms}
            log.append(row)


@pytest.fixture
def config(run_settings):
    return make_config(run_settings | {"eval": run_settings["eval"] | {"rewards": [{"name": "shapes"}]}})


def chosen(run, config, choice):
    """The step that was chosen, as its weights tell, and what was said."""
    said = []
    return int(choose_checkpoint(run, config, choice, said.append).tensors["policy"]["w"][0]), said


def test_the_newest_one_that_of_an_iteration_and_the_best(run, config):
    assert chosen(run, config, NEWEST) == (12, [])
    assert chosen(run, config, Choice(step=8)) == (8, [])
    assert chosen(run, config, BEST) == (4, ["Best held-out shapes of the iterations 4, 8: 0.7 after iteration 4."])


def test_the_best_goes_the_way_of_its_reward(run, config):
    (run / "rewards.json").write_text(json.dumps({"held_out": {"shapes": {"higher_is_better": False}}}))
    step, said = chosen(run, config, BEST)
    assert step == 8 and said[1] == "It was better before training: 0.1."


def test_of_equals_the_earliest_and_what_was_better_is_named(run, config):
    evaluate(run, {0: 0.1, 2: 0.9, 4: 0.5, 8: 0.5})
    step, said = chosen(run, config, BEST)
    assert step == 4 and "better after iteration 2" in said[1] and "0.9" in said[1]


def test_what_is_not_there_is_refused_with_what_is(run, config):
    with pytest.raises(ConfigError, match=r"Got 5; .* has those of 4, 8, 12\."):
        chosen(run, config, Choice(step=5))
    evaluate(run, {0: 0.1, 6: 0.7})
    with pytest.raises(ConfigError, match=r"checkpoints of 4, 8, 12 and evaluations after 0, 6\."):
        chosen(run, config, BEST)


@pytest.mark.parametrize("choice", [Choice(step=4), BEST])
def test_nothing_stands_in_for_what_was_asked_for(run, config, choice):
    os.truncate(run / "checkpoints/step-000004/policy.safetensors", 3)
    with pytest.raises(CheckpointError, match="step-000004"):
        chosen(run, config, choice)


VALUES = {0: 0.1, 4: 0.7, 8: 0.5, 12: 0.4}


def test_unnamed_is_the_newest_healthy_one(run, config):
    """An ailing evaluation speaks against its own checkpoint, and those up to the next on either side."""
    evaluate(run, VALUES)
    assert chosen(run, config, HEALTHY) == (12, [])
    evaluate(run, VALUES, hacked=(12,), collapsed=())
    step, said = chosen(run, config, HEALTHY)
    assert step == 8 and len(said) == 1 and "iteration 12 is not healthy: hacked. Taken: iteration 8" in said[0]
    assert chosen(run, config, NEWEST) == (12, []) and chosen(run, config, Choice(step=12)) == (12, [])
    evaluate(run, {0: 0.1, 2: 0.3, 5: 0.3, 10: 0.5}, hacked=(), collapsed=(10,))  # of 8 and 12 none of their own
    step, said = chosen(run, config, HEALTHY)
    assert step == 4 and "iteration 12 is not healthy: collapsed" in said[0]
    evaluate(run, {0: 0.1, 6: 0.5, 12: 0.5}, collapsed=(6,))
    assert chosen(run, config, HEALTHY) == (12, [])  # well again


def test_a_run_without_a_healthy_one_is_refused_with_two_pictures(run, config):
    evaluate(run, VALUES, collapsed=(4, 8, 12))
    for iteration in (0, 12):
        (run / f"samples/eval-{iteration:06}").mkdir(parents=True)
        (run / f"samples/eval-{iteration:06}/0-0.webp").touch()
    with pytest.raises(ConfigError, match=r"none of 4, 8, 12 is.*eval-000000/0-0\.webp with .*eval-000012/0-0\.webp"):
        chosen(run, config, HEALTHY)
    assert chosen(run, config, NEWEST) == (12, [])


def test_a_damaged_healthy_one_has_a_healthy_stand_in(run, config):
    evaluate(run, VALUES, hacked=(12,))
    os.truncate(run / "checkpoints/step-000008/policy.safetensors", 3)
    step, said = chosen(run, config, HEALTHY)
    assert step == 4 and "Using step 4 instead" in said[1]
    evaluate(run, VALUES, hacked=(8,))  # the newest is well, and damaged: what stands in must be well, too
    os.truncate(run / "checkpoints/step-000012/policy.safetensors", 3)
    save_checkpoint(run / "checkpoints", 8, {"policy": {"w": torch.full((2,), 8.0)}}, {})
    assert chosen(run, config, HEALTHY)[0] == 4


def test_metrics_that_nobody_can_read_are_said_and_stop_nothing(run, config):
    (run / "metrics.jsonl").write_text("no metrics\n{}\n")
    step, said = chosen(run, config, HEALTHY)
    assert step == 12 and "Which checkpoints are healthy is not known" in said[0]
    (run / "metrics.jsonl").unlink()
    assert chosen(run, config, HEALTHY) == (12, [])


def test_what_is_worth_keeping_is_the_best_and_the_newest_healthy_one(run, config):
    evaluate(run, VALUES, hacked=(12,))
    assert read_health(run, "shapes").worth_keeping([4, 8, 12]) == {4, 8}
    evaluate(run, VALUES, collapsed=(4, 8, 12))
    assert read_health(run, "shapes").worth_keeping([4, 8, 12]) == {4}
    evaluate(run, {})
    assert read_health(run, "shapes").worth_keeping([4, 8, 12]) == {12}


@pytest.mark.parametrize("choice", [NEWEST, HEALTHY, Choice(step=4), BEST])
def test_a_run_without_any_says_so(tmp_path, config, choice):
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        chosen(tmp_path, config, choice)


def test_two_at_once_or_of_no_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="Got --step 4 and --best"):
        require_choice(Choice(4, True), tmp_path)
    with pytest.raises(ConfigError, match="Got --best and --newest"):
        require_choice(Choice(best=True, newest=True), tmp_path)
    with pytest.raises(ConfigError, match="Add --run"):
        require_choice(Choice(4), None)
    require_choice(HEALTHY, None)
