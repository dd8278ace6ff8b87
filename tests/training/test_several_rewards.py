"""Several rewards in one run: labels, schedules, devices, precision, metadata, failures of a whole scorer."""

import math
import os

import pytest

from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError
from diffrl.training.evaluate import shared_out
from diffrl.training.scorers import make_scorers
from reward_models import RewardError
from tests.distributed.test_distributed import launch
from tests.training.harness import (
    BRIGHTNESS,
    make_trainer,
    rows_of,
    settings,
    start,
    summary_of,
    write_config,
)

RED = {"name": BRIGHTNESS, "label": "red", "options": {"channel": 0}}
BLUE = {"name": BRIGHTNESS, "label": "blue", "options": {"channel": 2}}


def config_of(pipeline, directory, rewards, **changes):
    return make_config(settings(pipeline, directory, rewards=rewards, **changes))


def test_one_scorer_twice_under_two_labels(random_sd3, tmp_path):
    rewards = [{**RED, "weight": 2.0, "shift": 0.25, "scale": 0.5}, {**BLUE, "weight": -1.0}]
    trainer = make_trainer(settings(random_sd3, tmp_path, rewards=rewards))
    done = trainer.iterate()
    metrics = done.metrics
    table, images = done.samples.table, done.samples.rollout.images.double() / 255
    red, blue = images[:, 0].flatten(1).mean(1), images[:, 2].flatten(1).mean(1)
    assert (table.total - (2 * (red - 0.25) / 0.5 - blue)).abs().max() < 1e-5
    assert metrics["reward/red"] == pytest.approx(float(red.mean()), rel=1e-5) and "reward/blue/top" in metrics


def test_a_schedule_is_straight_lines_and_asks_nothing_at_zero(random_sd3, tmp_path):
    rewards = [RED, {**BLUE, "weight": 4.0, "schedule": [[1, 0.0], [3, 1.0]]}]
    data = settings(random_sd3, tmp_path, rewards=rewards, run={"iterations": 5}, train={"learning_rate": 1e-5})
    config = make_config(data)
    assert [config.rewards[1].factor(i) for i in range(6)] == [0, 0, 0.5, 1, 1, 1]
    run_dir, _ = start(data)
    rows = rows_of(run_dir)[1:]
    assert ["reward/blue" in row for row in rows] == [False, False, True, True, True]
    for row, factor in zip(rows, (0, 0, 0.5, 1, 1), strict=True):
        expected = row["reward/red"] + 4 * factor * row.get("reward/blue", 0.0)
        assert row["reward/mean"] == pytest.approx(expected, rel=1e-5)
    assert [row["reward_calls"] for row in rows] == [6, 6, 12, 12, 12]
    assert make_plan(config).reward_calls == summary_of(run_dir)["counts"]["reward_calls"] == 48 + 2 * 5


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ({**BLUE, "weight": 0.0, "schedule": [[0, 1.0]]}, "rewards.schedule has no effect on a weight of 0"),
        ({**BLUE, "schedule": [[3, 0.0], [3, 1.0]]}, "must have ascending iterations"),
        ({**BLUE, "schedule": [[3, -1.0]]}, "must be >= 0"),
        ({**BLUE, "device": "gpu"}, "rewards.0.device"),
        ({**BLUE, "label": "a/b"}, "rewards.0.label"),
        ({**BLUE, "schedule": [[0, 0.0], [1, 1.0]]}, "rewards must leave one with a weight other than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(random_sd3, tmp_path, reward, sentence):
    with pytest.raises(ConfigError) as caught:
        config_of(random_sd3, tmp_path, [reward])
    assert sentence in str(caught.value)


def test_held_out_rewards_have_no_schedule(random_sd3, tmp_path):
    evaluation = {"rewards": [{**RED, "schedule": [[0, 1.0]]}], "samples": 5, "steps": 3}
    with pytest.raises(ConfigError, match="eval.rewards must have no schedule"):
        config_of(random_sd3, tmp_path, [RED], eval=evaluation)


def test_a_device_that_is_not_there_and_a_dtype_that_nothing_has(random_sd3, tmp_path):
    config = config_of(random_sd3, tmp_path, [{**RED, "device": "cuda:97"}])
    with pytest.raises(ConfigError, match=r"rewards.0.device must be a device of this machine. Got cuda:97"):
        make_scorers(config.rewards, "rewards")
    config = config_of(random_sd3, tmp_path, [{**RED, "dtype": "bfloat16"}])
    with pytest.raises(ConfigError, match="does not take these options: dtype. It takes: channel"):
        make_scorers(config.rewards, "rewards")


def test_rewards_of_a_device_share_a_lane(random_sd3, tmp_path):
    lanes = {}
    made = make_scorers(
        config_of(random_sd3, tmp_path, [RED, {**BLUE, "device": "cpu"}]).rewards, "rewards", lanes=lanes
    )
    assert made[0].lane is made[1].lane is None and not lanes  # the model's own cores
    assert made[0].timeout == made[1].timeout == 1800
    made = make_scorers(
        config_of(random_sd3, tmp_path, [{**RED, "device": "cpu"}]).rewards, "rewards", "meta", None, lanes
    )
    assert made[0].lane is lanes["cpu"]  # the model runs elsewhere


def test_held_out_diversity_needs_two_samples_a_prompt(random_sd3, tmp_path):
    def trainer(samples, folder):
        evaluation = {"rewards": [{"name": "diversity"}], "samples": samples, "steps": 2}
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("a red circle\ntwo blue squares\na green triangle\n")
        data = settings(random_sd3, tmp_path / folder, eval=evaluation)
        data["prompts"] |= {"eval": str(prompts), "eval_on_train": True}
        return make_trainer(data)

    with pytest.raises(ConfigError, match="eval.samples must be at least twice .* Got 5 samples of 3 prompts"):
        trainer(5, "few")
    assert trainer(6, "enough").evaluate().means["diversity"] > 0


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("samples", "prompts"), [(7, 3), (6, 3), (12, 5)])
def test_ranks_share_out_whole_prompts_for_groups(samples, prompts, world):
    for scopes in (["sample"], ["sample", "group"]):
        shares = [shared_out(samples, prompts, rank, world, scopes) for rank in range(world)]
        assert sorted(i for share in shares for i in share) == list(range(samples)) and all(shares)
    owners = [{rank for rank in range(world) for i in shares[rank] if i % prompts == p} for p in range(prompts)]
    assert all(len(owner) == 1 for owner in owners)


class Unwell:
    """Brightness that fails altogether, without parts, from its `calls`-th call on: a server that has died."""

    def __new__(cls, calls=0):
        from tests.training.scorers import Brightness

        class Scorer(Brightness):
            left = calls

            def __call__(self, batch):
                from reward_models.base import output_of_rows

                self.left -= 1
                if self.left >= 0:
                    return super().__call__(batch)
                return output_of_rows([(math.nan, {}, "the server did not answer")] * len(batch))

        return Scorer()


def test_a_held_out_reward_that_fails_is_told_and_harms_nobody(random_sd3, tmp_path):
    held_out = [{"name": "tests.training.test_several_rewards:Unwell", "options": {"calls": 1}}, RED]
    run_dir, said = start(settings(random_sd3, tmp_path, eval={"rewards": held_out, "samples": 5, "steps": 3}))
    rows = rows_of(run_dir)
    key = "held_out/tests.training.test_several_rewards:Unwell"
    assert math.isfinite(rows[0][key]) and rows[-1][key] is None and math.isfinite(rows[-1]["held_out/red"])
    change = summary_of(run_dir)["held_out"]
    assert math.isfinite(change[f"{key.removeprefix('held_out/')}_before"])
    assert change[f"{key.removeprefix('held_out/')}_after"] is None and "unknown" in said
    assert "5 of 5 held-out samples could not be scored" in said


class UnwellOnRankOne:
    """Brightness that raises, on the second of two ranks, in its second call."""

    def __new__(cls):
        from tests.training.scorers import Brightness

        class Scorer(Brightness):
            calls = 0

            def __call__(self, batch):
                self.calls += 1
                if self.calls == 2 and os.environ["RANK"] == "1":
                    raise RewardError("this machine has lost its weights")
                return super().__call__(batch)

        return Scorer()


@pytest.mark.slow
def test_a_reward_that_fails_on_one_rank_ends_all_with_one_sentence(random_sd3, tmp_path):
    rewards = [{"name": "tests.training.test_several_rewards:UnwellOnRankOne"}]
    path = write_config(settings(random_sd3, tmp_path, rewards=rewards), tmp_path / "config.yaml")
    found = launch(path)
    said = [line for line in found.stderr.splitlines() if line.startswith("error")]
    assert sorted(said) == [
        "error on rank 1: this machine has lost its weights",
        "error: On rank 1: this machine has lost its weights",
    ]
    assert found.returncode != 0 and not any("diffrl/training" in line for line in found.stderr.splitlines())
