"""Two processes are one: the same weights, rewards and counts, and one of them writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffrl.models.tiny import build_pipeline, save_pipeline
from diffrl.tracking.pictured import most_changed
from diffrl.tracking.store import SampleStore
from diffrl.trees.read import list_trees
from tests.conftest import WORDS
from tests.training.harness import (
    BRIGHTNESS,
    EXPLORE,
    FOREST,
    FUSED,
    TREES,
    assert_same_run,
    assert_same_trees,
    distance,
    flat,
    rows_of,
    settings,
    start,
    summary_of,
    write_config,
)
from tests.training.test_pairs import votes

ROOT = Path(__file__).parents[2]
MANY = "tests/studies/many_runs.py"
LAUNCH = (
    "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision bf16 --dynamo_backend no --main_process_port 0"
)
"""`--cpu --num_processes 2` starts one process without a word. `--multi_gpu` starts two; model.device says where.
The launcher's precision, and the accumulation set below, are not ours: a run takes both from its configuration."""


def launch(*arguments, script="scripts/train.py", **variables):
    """Two ranks of a script; variables are added to their environment."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        **variables,
    }
    command = [sys.executable, "-m", "accelerate.commands.launch", *LAUNCH.split(), str(ROOT / script)]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=900
    )


def shared_run(pipeline, directory):
    """Four prompts, an uneven evaluation, a reference; Adam smoothed as in test_loop."""
    data = settings(
        pipeline,
        directory,
        model={"family": "sd3", "path": str(pipeline), "device": "cpu", "lora": {"rank": 4, "alpha": 8}},
        prompts={"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 4},
        objective={"kl": 0.3},
        train={"learning_rate": 3e-3, "epsilon": 1e-3, "updates_per_iteration": 2, "micro_batch": 5},
        track={"tensorboard": True, "pictures_per_iteration": 2, "pictures_per_evaluation": 3} | TREES,
    )
    data["run"] |= {"iterations": 3, "checkpoint_every": 1}
    return data


def idle_rank_run(pipeline, directory):
    """A forest; of the two prompts one cannot be learnt from, so one of the ranks has nothing to train."""
    (directory / "prompts.txt").write_text("a red circle\na blue square\n")
    data = settings(
        pipeline,
        directory,
        model={"family": "sd3", "path": str(pipeline), "device": "cpu", "lora": {"rank": 4, "alpha": 8}},
        prompts={"train": str(directory / "prompts.txt"), "eval": "shapes:tune", "per_iteration": 2},
        rewards=[{"name": "tests.training.scorers:FlatFor", "options": {"word": "red"}}],
        credit=FUSED,
        train={"learning_rate": 3e-3, "epsilon": 1e-3, "updates_per_iteration": 2, "micro_batch": 2},
        track=TREES,
    )
    data["rollout"] |= FOREST
    return data


def exploring_run(pipeline, directory):
    """Two stages and both losses."""
    objective = {"kind": "nft", "kl": 0.1, "old_decay_max": 0.0, "edges": {"weight": 0.3}}
    data = idle_rank_run(pipeline, directory) | {"objective": objective}
    data["rollout"] |= {"explore": EXPLORE | {"steps": None}}
    data["prompts"]["per_iteration"] = 4
    return data


def tilt_run(pipeline, directory):
    """Tree tilt; one of the ranks' prompts has no direction, so that rank joins with nothing."""
    data = idle_rank_run(pipeline, directory) | {"objective": {"kind": "tilt"}, "credit": {}}
    data["train"]["updates_per_iteration"] = 1
    return data


def nodes_run(pipeline, directory):
    """The same of some nodes, chosen at random, pulled to a reference."""
    data = tilt_run(pipeline, directory)
    data["objective"] |= {"kl": 0.1, "nodes": {"keep": 2, "by": "random"}}
    data["prompts"]["per_iteration"] = 4
    return data


def group_run(pipeline, directory):
    """Groups that are compared before each update; one rank has none of which anything trains."""
    data = idle_rank_run(pipeline, directory) | {"objective": {"kind": "dgpo", "kl": 0.0, "levels": 3}, "credit": {}}
    data["objective"] |= {"old_decay_rate": 0.3}
    return data


def art_run(pipeline, directory):
    """States of chains; one rank's prompt has no direction, and its second update only holds what the first moved."""
    data = idle_rank_run(pipeline, directory) | {"objective": {"kind": "art", "levels": 3}, "credit": {}}
    data["rollout"] |= {"dynamics": None, "stochastic": {"kind": "none"}, "tree": {"roots": 4}}
    data["train"]["updates_per_iteration"] = 2
    return data


def paired_run(pipeline, directory):
    """Given pairs, a prompt each; held-out ones are judged by both ranks together."""
    data = idle_rank_run(pipeline, directory)
    path = str(votes(directory / "votes"))
    data["prompts"] |= {"train": path, "eval": path, "eval_on_train": True}
    data["objective"] = {"kind": "dpo", "beta": 30.0, "levels": 3}
    return {name: section for name, section in data.items() if name not in ("rollout", "rewards", "credit")}


def recovering_run(pipeline, directory):
    """An alarm at the second evaluation; both ranks go back to the weights before training."""
    data = idle_rank_run(pipeline, directory)
    alarm = {"sharpness": 1.0000001, "diversity": 0.0, "held_out_drop": 1e9}
    data["guards"] = {"reward_hacking": alarm, "recover": {"times": 1}}
    data["run"] |= {"iterations": 3, "eval_every": 2}
    data["train"]["updates_per_iteration"] = 1
    return data


def two_networks_run(pipeline, directory):
    """Wan 2.2: a rank may need another network than the other, or one of them only."""
    pipeline = directory / "wan22"
    save_pipeline(build_pipeline("wan", WORDS.split(), seed=0, boundary_ratio=0.6), pipeline)
    data = settings(
        pipeline,
        directory,
        model={
            "family": "wan", "path": str(pipeline), "device": "cpu", "lora": {"rank": 3, "alpha": 6},
            "height": 32, "width": 32, "frames": 5,
        },
        train={"learning_rate": 3e-3, "epsilon": 1e-3, "updates_per_iteration": 2, "micro_batch": 1},
    )  # fmt: skip
    data["rollout"]["stochastic"] |= {"size": 3}
    return data


def configs(makers, pipeline, directory):
    """Each run's settings, and the file that holds them."""
    for name, make in makers.items():
        (directory / name).mkdir(parents=True)
        data = make(pipeline, directory / name)
        yield data, write_config(data, directory / name / "config.yaml")


def both_ways(makers, pipeline, directory):
    """Folders of the runs of one process, and of two, which are started once for all of them."""
    for data, _ in configs(makers, pipeline, directory / "one"):
        start(data)
    done = launch(*(path for _, path in configs(makers, pipeline, directory / "two")), script=MANY)
    assert done.returncode == 0, done.stderr
    return directory / "one", directory / "two"


FORESTS = {
    "idle": idle_rank_run,
    "exploring": exploring_run,
    "nodes": nodes_run,
    "art": art_run,
    "grouped": group_run,
    "paired": paired_run,
    "recovering": recovering_run,
    "networks": two_networks_run,
}


@pytest.fixture(scope="module")
def forests(random_sd3, tmp_path_factory):
    return both_ways(FORESTS, random_sd3, tmp_path_factory.mktemp("forests"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORESTS)
def test_runs_of_two_processes_are_those_of_one(forests, name):
    one, two = (folder / name / "run" for folder in forests)
    torch.testing.assert_close(policy(two, 2), policy(one, 2), rtol=1e-4, atol=5e-6)  # a step is 3e-3
    for row, other in zip(rows_of(two), rows_of(one), strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() & {"update/evaluated", "decodes", "groups/zero_spread"}:
            assert row[key] == other[key], key
        made, expected = (r.get("evaluations/update", 0) + r.get("evaluations_skipped", 0) for r in (row, other))
        assert made == expected  # an idle rank evaluates one unit to join the others, which is then not skipped
        for key in row.keys() & {
            *("reward/mean", "update/loss", "update/grad_norm", "update/direction", "fidelity/tau"),
            *("pairs/accuracy", "pairs/margin"),
        }:
            cancels = name in ("grouped", "networks") and key == "update/loss"
            # and a pixel that rounds otherwise is 1e-4 of an advantage
            assert row[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5 if cancels else 1e-7), key
    if name == "recovering":
        assert [row.get("sentinel/back_to") for row in rows_of(two)] == [None, None, 0, None]
        torch.testing.assert_close(policy(two, 3), policy(one, 3), rtol=1e-4, atol=5e-6)
    if name == "idle":
        assert [row["groups/zero_spread"] for row in rows_of(one)[1:]] == [1, 1]


@pytest.fixture
def one(launched):
    return launched[0] / "shared/run"


@pytest.fixture
def two(launched):
    return launched[1] / "shared/run"


def policy(run_dir, step):
    from diffrl.checkpoint.files import load_checkpoint

    return flat(load_checkpoint(run_dir / f"checkpoints/step-{step:06d}").tensors["policy"])


@pytest.mark.long
def test_two_processes_train_what_one_trains(one, two):
    assert '"processes": 2' in (two / "environment.json").read_text()
    moved = policy(one, 3) - policy(one, 1)
    for step in (1, 2, 3):  # where a gradient is nothing but rounding, Adam may go another way
        assert (policy(two, step) - policy(one, step)).abs().max() < 1e-2 * moved.abs().max()
    assert distance(policy(two, 3) - policy(two, 1), moved) < 1e-3 and moved.abs().max() > 1e-3


@pytest.mark.long
def test_they_report_the_same_once(one, two):
    rows, expected = rows_of(two), rows_of(one)
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for name in row.keys() & {"reward/mean", "reward/std", f"held_out/{BRIGHTNESS}", "update/grad_norm"}:
            assert row[name] == pytest.approx(other[name], rel=1e-3)
        for name in row.keys() & {"network_evaluations", "update/learning_rate", "groups/zero_spread"}:
            assert row[name] == other[name]
    counts = summary_of(two)["network_evaluations"]
    assert counts == summary_of(one)["network_evaluations"]
    assert counts["exact"] and counts["planned"] == counts["counted"] + counts["skipped"]


@pytest.mark.long
def test_the_first_process_keeps_the_held_out_scores_of_both(one, two):
    """And pictures of all at the first evaluation, later of what changed most, whoever drew it."""
    found = {}
    for run in (one, two):
        with SampleStore.open_readonly(run) as store:
            found[run] = sorted(
                store.read(stage="eval"), key=lambda sample: (sample.iteration, sample.group, sample.root)
            )
    assert len(found[one]) == len(found[two]) > 0
    for sample, other in zip(found[two], found[one], strict=True):
        assert (sample.iteration, sample.group, sample.root, sample.prompt) == (
            other.iteration,
            other.group,
            other.root,
            other.prompt,
        )
        assert sample.total == pytest.approx(other.total, rel=1e-3)
        assert sample.iteration or (sample.file and other.file)
    for iteration in {sample.iteration for sample in found[one]} - {0}:
        first, last = ([s for s in found[two] if s.iteration == n] for n in (0, iteration))
        most = most_changed([s.total for s in last], [s.total for s in first], 3)
        assert most and all(last[place].file for place in most)
        assert not all(sample.file for sample in last), "of the others none"


@pytest.mark.long
def test_the_first_process_keeps_its_trees(one, two):
    """The same as one process would."""
    assert list_trees(two) == list_trees(one) == [(i, group) for i in (0, 2) for group in (0, 1)]
    assert_same_trees(two, one)


@pytest.mark.slow
def test_two_processes_resume(two, tmp_path):
    stopped = shutil.copytree(two, tmp_path / "run")
    shutil.rmtree(stopped / "checkpoints/step-000003")
    done = launch("--resume", stopped)
    assert done.returncode == 0, done.stderr
    assert_same_run(stopped, two)


@pytest.mark.slow
def test_a_process_whose_other_one_was_killed_says_so(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, rewards=[{"name": "tests.training.scorers:DiesOnTheSecondRank"}])
    done = launch(write_config(data, tmp_path / "config.yaml"))
    assert done.returncode != 0 and "exitcode  : -9 " in done.stderr
    assert done.stderr.count("error: Another process of this run has ended") == 1
    assert "diffrl/lifecycle.py" not in done.stderr  # no traceback of ours
    assert "Failed: DiffrlError: Another process" in (tmp_path / "run/log.txt").read_text()


def sleeping(pipeline, directory, seconds, timeout, **train):
    """One iteration, in which the second rank's reward sleeps."""
    reward = {"name": "tests.training.scorers:SleepsOnTheSecondRank", "options": {"seconds": seconds}}
    data = settings(pipeline, directory, rewards=[reward | {"timeout": timeout}], train=train)
    data["run"] |= {"iterations": 1, "checkpoint_every": 1}
    return write_config(data, directory / "config.yaml")


@pytest.mark.slow
def test_ranks_wait_as_long_as_the_settings_let_one_take(random_sd3, tmp_path):
    """For a reward, and for its part of a checkpoint, though the backend would give up before."""
    done = launch(
        sleeping(random_sd3, tmp_path, 8, 1800.0, sharding="fsdp"),
        script="tests/distributed/impatient.py",
        SLOW_WRITES="3",
    )
    assert done.returncode == 0, done.stderr
    assert summary_of(tmp_path / "run")["iterations"] == 1


@pytest.mark.slow
def test_a_reward_that_is_overdue_on_one_rank_ends_all_in_its_sentence(random_sd3, tmp_path):
    done = launch(sleeping(random_sd3, tmp_path, 900, 8.0), script="tests/distributed/impatient.py")
    sentence = "has not answered for 8 seconds (rewards.timeout)"
    assert done.returncode != 0 and "exitcode  : 3 " in done.stderr
    assert done.stderr.count(sentence) >= 1, done.stderr
    log = (tmp_path / "run/log.txt").read_text()
    assert "On rank 1: The reward" in log and sentence in log and "Another process" not in log
