"""The fuzzer, run small; and it sees what it is there to see."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attacks import configurations, run_directories, same_run
from tests.attacks import trial as trials
from tests.patience import LONG, until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]


def fuzz(*words, script="fuzz"):
    command = [sys.executable, "-m", f"tests.attacks.{script}", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.long
def test_a_small_attack_finds_nothing():
    done = fuzz("all", "--count", 3, "--seed", 10)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("tried 3: ") == 4
    assert ", trained " in done.stdout and "resumed alike " in done.stdout


@pytest.mark.slow
def test_a_small_attack_on_runs_finds_nothing():
    done = fuzz("--kills", 3, "--disks", 1, script="runs")
    assert done.returncode == 0, done.stdout + done.stderr


def ended(said="", code=0, **messages):
    return trials.Ended(said, list(messages.items()), code)


DONE = {"check": 0, "plan": 0, "learnt": True, "moved": True, "train": 0}
MEMORY = {"check": 0, "plan": 0, "peak": 1000, "train": 2}


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (ended("error: run.name must be text.", check=2), "refused"),
        (ended(**DONE), "trained"),
        (ended(f"{trials.MARK}\nValueError: nobody mended this", check="ValueError"), "traceback"),
        (ended("", -signal.SIGKILL), "died"),
        (ended("", check=2), "no sentence"),
        (ended("error: " + "k" * 100_000, check=2), "flood"),
        (ended(**DONE | {"learnt": False}), "trained nothing"),
        (ended("error: Out of memory. Lower something.", **MEMORY), "memory"),
    ],
)
def test_every_fault_is_seen(trial, expected):
    assert configurations.judge(trial)[0] == expected


def test_a_trial_that_hangs_is_ended_and_says_where(tmp_path, monkeypatch):
    def hangs_here(send):
        Path("begun").touch()
        time.sleep(2 * LONG)

    (tmp_path / "here").mkdir()
    for words in (1.0, 20.0):  # more, where the machine stood still meanwhile
        monkeypatch.setattr(trials, "LAST_WORDS", words)
        trial = trials.Trial(hangs_here, tmp_path / "here")
        until((tmp_path / "here/begun").exists)
        ended = trial.ended(0.0)
        if "hangs_here" in ended.output:
            break
    assert configurations.judge(ended)[0] == "hang" and "hangs_here" in ended.output


@pytest.mark.parametrize("fault", ["none", "rows", "checkpoints"])
def test_what_is_lost_is_seen(tmp_path, fault):
    run = tmp_path / "run"
    for file, text in (("metrics.jsonl", '{"iteration": 0}\n{"iteration": 1}\n'), ("samples/eval-000000/0-0.webp", "a"),
                       ("checkpoints/step-000001/state.json", "b")):  # fmt: skip
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_text(text)
    before = run_directories.contents(run)
    if fault == "rows":
        (run / "metrics.jsonl").write_text('{"iteration": 0}\n')
    elif fault == "checkpoints":
        (run / "checkpoints").rename(run / "aside")
        (run / "aside/step-000001/state.json").write_text("c")
    refusal = trials.Ended("error: it cannot be resumed", [("code", 2)])
    outcome, _ = run_directories.judge(refusal, run, before, fault)
    assert outcome == ("refused" if fault == "none" else "lost")


def test_two_runs_that_differ_are_told_apart(tmp_path):
    for name, loss in (("a", 0.5), ("b", 0.5), ("c", 0.5 + 2**-50)):
        (tmp_path / name).mkdir()
        row = {"iteration": 1, "update/loss": loss, "seconds/update": random.random()}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert not same_run.differences(tmp_path / "a", tmp_path / "b", [same_run.rows])
    assert same_run.differences(tmp_path / "a", tmp_path / "c", [same_run.rows])
    assert len(same_run.differences(tmp_path / "a", tmp_path / "b")) == 3  # what cannot be read is no proof


def test_a_seed_makes_the_same_mutants_again_and_none_that_leaves_its_folder():
    mutant = configurations.mutant
    made = [mutant(random.Random(f"x:{n}")) for n in range(40)]
    assert made == [mutant(random.Random(f"x:{n}")) for n in range(40)]
    assert len({one.text for one in made}) > 35
    for seed in range(200):
        rng = random.Random(seed)
        data = {"run": {"dir": "/tmp"}, "model": {"path": "~/x"}, "prompts": {"train": "/etc/passwd", "eval": 3}}
        configurations.kept_inside(rng, data)
        values = [data["run"]["dir"], data["model"]["path"], data["prompts"]["train"]]
        assert not any(value.startswith(("/etc", "/tmp", "~/")) for value in values)
