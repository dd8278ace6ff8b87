"""Which checkpoint is meant: exactly the one that was asked for, or a sentence."""

import json
import os

import pytest
import torch

from diffrl.checkpoint.files import save_checkpoint
from diffrl.config.load import make_config
from diffrl.errors import CheckpointError, ConfigError
from diffrl.run.checkpoints import NEWEST, Choice, choose_checkpoint, require_choice
from diffrl.tracking.metrics import MetricsLog

BEST = Choice(best=True)


@pytest.fixture
def run(tmp_path):
    """Checkpoints of 4, 8 and 12; held-out values after 0, 2, 4, 8 and, as null, after 12."""
    for step in (4, 8, 12):
        save_checkpoint(tmp_path / "checkpoints", step, {"policy": {"w": torch.full((2,), float(step))}}, {})
    evaluate(tmp_path, {0: 0.1, 2: 0.3, 4: 0.7, 8: 0.5, 12: float("nan")})
    return tmp_path


def evaluate(run, values):
    (run / "metrics.jsonl").unlink(missing_ok=True)
    with MetricsLog(run / "metrics.jsonl") as log:
        for step in range(13):
            log.append({"iteration": step} | ({"held_out/shapes": values[step]} if step in values else {}))


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


@pytest.mark.parametrize("choice", [NEWEST, Choice(step=4), BEST])
def test_a_run_without_any_says_so(tmp_path, config, choice):
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        chosen(tmp_path, config, choice)


def test_two_at_once_or_of_no_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="Got both"):
        require_choice(Choice(4, True), tmp_path)
    with pytest.raises(ConfigError, match="Add --run"):
        require_choice(Choice(4), None)
    require_choice(NEWEST, None)
