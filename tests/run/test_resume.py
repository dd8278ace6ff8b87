"""A run that was interrupted, at whatever moment and however rudely, ends as if it never had been."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import diffrl.run.completion as completion
import diffrl.run.journal as journal
from diffrl.cli import main
from diffrl.errors import GuardStop
from diffrl.training.loop import Trainer
from tests.patience import LONG, until
from tests.tiers import daily
from tests.training.harness import (
    TREES,
    assert_same_run,
    go_on,
    last_checkpoint,
    rows_of,
    settings,
    start,
    summary_of,
    write_config,
)

ROOT = Path(__file__).parents[2]
LORA = {"rank": 3, "alpha": 5, "targets": ["to_q"]}
RUNNER = """
import os, sys, time
import accelerate, matplotlib.figure, peft  # imports are paid once
from diffusers import StableDiffusion3Pipeline
from diffrl.cli import main
import diffrl.run.completion
from diffrl.terminal import signals
from diffrl.training.loop import Trainer

def hold(place):
    # A run goes no further than to the iteration, or to the end, at which a signal is to reach it.
    iterate, finish, most = Trainer.iterate, diffrl.run.completion.finish, time.monotonic() + 600
    signals.ANSWER = 1.0 if place == "for ever" else 600.0
    def held(trainer):
        open(os.path.join(trainer.config.run.dir, "held"), "w").close()
        while place == "for ever" and time.monotonic() < most:  # whatever signal comes, as a reward that hangs
            time.sleep(0.01)
        while str(trainer.iteration) == place and not trainer.stop.received and time.monotonic() < most:
            time.sleep(0.01)
        return iterate(trainer)
    def ended(*arguments):
        while place == "end" and time.monotonic() < most:
            time.sleep(0.01)
        return finish(*arguments)
    Trainer.iterate, diffrl.run.completion.finish = held, ended

for line in sys.stdin:  # where it is held and the arguments of one more run
    child = os.fork()
    if child == 0:
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        try:
            place, *arguments = line.strip().split("|")
            hold(place)
            main(arguments)
        except SystemExit as stop:
            os._exit(stop.code or 0)
        os._exit(1)
    print("child", child, flush=True)
    sys.stdin.readline()  # until the test asks, an ended child keeps its number, so no kill can hit another process
    _, status = os.waitpid(child, 0)
    print("code", os.waitstatus_to_exitcode(status), flush=True)
"""


class Crash(BaseException):
    """The process ends here."""


def long_run(pipeline, directory, **changes):
    """Five iterations, a checkpoint after the second, fourth and fifth; everything that has a state is in use."""
    data = settings(
        pipeline,
        directory,
        model={"family": "sd3", "path": str(pipeline), "lora": LORA},
        train={"learning_rate": 1e-2, "schedule": "cosine", "warmup_updates": 3, "ema": {"decay": 0.7}},
        track=TREES,
    )
    data["run"] |= {"iterations": 5, "eval_every": 2}
    data["rollout"] |= {"stochastic": {"kind": "window", "size": 2, "slide_every": 1}}
    for section, values in changes.items():
        data[section] = data[section] | values
    return data


@pytest.fixture(scope="module")
def uninterrupted(random_sd3, tmp_path_factory):
    run_dir, _ = start(long_run(random_sd3, tmp_path_factory.mktemp("straight")))
    return run_dir


def crash_at(monkeypatch, owner, name, call, before=True):
    """The process ends at the `call`-th call, from 1, of a function: before or after it did its work."""
    original, calls = getattr(owner, name), []

    def crashing(*args, **kwargs):
        calls.append(name)
        if before and len(calls) == call:
            raise Crash
        found = original(*args, **kwargs)
        if not before and len(calls) == call:
            raise Crash
        return found

    monkeypatch.setattr(owner, name, crashing)


@contextmanager
def crashing(owner, name, call, before=True):
    """Inside, a run is started that ends there."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, owner, name, call, before)
        yield


MOMENTS = {
    "before the first checkpoint": (Trainer, "iterate", 2, True),
    "after the samples, before the metrics": (journal.Journal, "train_samples", 3, False),
    "while a checkpoint is written": (journal, "save_checkpoint", 2, False),
    "while the summary is written, after the last checkpoint": (completion, "write_curve", 1, True),
}


@pytest.mark.parametrize("moment", daily(MOMENTS, list(MOMENTS)[1:3], [list(MOMENTS)[0], list(MOMENTS)[3]]))
def test_a_crash_changes_nothing(random_sd3, tmp_path, uninterrupted, moment):
    with crashing(*MOMENTS[moment]):
        start(long_run(random_sd3, tmp_path), drawn="summary" in moment)
    said = go_on(tmp_path / "run")
    if "first" in moment:
        assert "before its first checkpoint: it starts again from the beginning" in said
        assert (tmp_path / "run/before-1/metrics.jsonl").exists()  # nothing that was trained is thrown away
    else:
        reached = "5" if "last" in moment else "[24]"
        assert re.search(rf"Resuming .* from iteration {reached} of 5", said)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_guards_go_on_counting(random_sd3, tmp_path):
    data = settings(
        random_sd3,
        tmp_path,
        rewards=[{"name": "tests.training.scorers:Constant"}],
        guards={"collapsed_spread": {"action": "stop", "patience": 3}},
    )
    data["run"]["iterations"] = 5
    with crashing(Trainer, "iterate", 3):
        start(data)
    with pytest.raises(GuardStop, match="In 3 iterations in a row"):
        go_on(tmp_path / "run")
    assert [row["iteration"] for row in rows_of(tmp_path / "run")] == [0, 1, 2]


# --- real signals ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    yield process
    process.stdin.close()
    process.wait(timeout=LONG)


def ask(runner, answer, *words):
    print(*words, sep="|", file=runner.stdin, flush=True)
    kind, number = runner.stdout.readline().split()
    assert kind == answer
    return int(number)


def run_until(runner, moment, signal_number, *arguments, held="nowhere"):
    """Start a run, send it a signal when `moment` returns (None = never), and wait for its exit code."""
    child = ask(runner, "child", held, *arguments)
    try:
        if signal_number is not None:
            moment()
            os.kill(child, signal_number)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        code = ask(runner, "code", "now")
    return code


def run_through(runner, *arguments):
    return run_until(runner, None, None, *arguments)


def lines(run_dir):
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@pytest.mark.long
def test_kill_nine_at_several_moments(random_sd3, tmp_path, uninterrupted, runner):
    run_dir = tmp_path / "run"
    config = write_config(long_run(random_sd3, tmp_path), tmp_path / "config.yaml")
    checkpoints = run_dir / "checkpoints"
    moments = {  # by where the run waits for its end if that comes late
        "1": lambda: lines(run_dir) >= 2,  # before the first checkpoint
        "2": lambda: checkpoints.exists() and any(checkpoints.iterdir()),  # while the first is written, or just after
        "end": lambda: (checkpoints / "step-000005").exists(),  # between the last one and the end
    }
    arguments = ["train", config]
    for held, moment in moments.items():
        code = run_until(runner, lambda moment=moment: until(moment), signal.SIGKILL, *arguments, held=held)
        assert code == -signal.SIGKILL
        arguments = ["train", "--resume", run_dir]
    assert not (run_dir / "summary.json").exists()
    with pytest.raises(SystemExit, match="5"):  # it waits to be resumed
        main(["status", str(run_dir)])
    assert run_through(runner, *arguments) == 0
    assert (run_dir / "before-1/metrics.jsonl").exists()  # nothing that was trained is thrown away
    assert_same_run(run_dir, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_kill_nine_at_random_moments(random_sd3, tmp_path, uninterrupted, runner, seed):
    chance = random.Random(seed)
    config = write_config(long_run(random_sd3, tmp_path), tmp_path / "config.yaml")

    def command():  # a busy machine may have begun no run within any of the waits
        known = (tmp_path / "run/config.yaml").exists()
        return ["train", "--resume", tmp_path / "run"] if known else ["train", config]

    for _ in range(12):
        if run_until(runner, lambda: time.sleep(chance.uniform(0.0, 1.5)), signal.SIGKILL, *command()) == 0:
            break
    assert run_through(runner, *command()) == 0
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.long
def test_sigterm_writes_a_checkpoint_and_exits_with_143(random_sd3, tmp_path, uninterrupted, runner):
    config = write_config(long_run(random_sd3, tmp_path, run={"checkpoint_every": 5}), tmp_path / "config.yaml")
    run_dir = tmp_path / "run"

    def begun():
        until(lambda: lines(run_dir) >= 2)

    assert run_until(runner, begun, signal.SIGTERM, "train", config, held="3") == 143
    step, _, _ = last_checkpoint(run_dir)
    assert step == rows_of(run_dir)[-1]["iteration"] and 0 < step < 5
    assert f"SIGTERM: checkpoint written after iteration {step}" in (run_dir / "log.txt").read_text()
    assert not (run_dir / "summary.json").exists()
    go_on(run_dir)
    assert_same_run(run_dir, uninterrupted)


@pytest.mark.long
def test_a_run_that_hangs_ends_when_it_is_asked_to(random_sd3, tmp_path, runner):
    config = write_config(long_run(random_sd3, tmp_path), tmp_path / "config.yaml")

    def begun():
        until((tmp_path / "held").exists)

    assert run_until(runner, begun, signal.SIGTERM, "train", config, held="for ever") == 143
    log = (tmp_path / "run/log.txt").read_text()
    assert "nothing answered" in log and "There is no checkpoint yet" in log


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(uninterrupted, tmp_path):
    """A copy of the finished run, to be damaged."""
    return shutil.copytree(uninterrupted, tmp_path / "copy")


def flip_a_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_short(file):
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(("damage", "name"), [(flip_a_byte, "optimizer.safetensors"), (cut_short, "state.json")])
def test_a_torn_newest_checkpoint_is_reported_and_the_one_before_used(stopped, uninterrupted, damage, name):
    damage(stopped / "checkpoints/step-000005" / name)
    said = go_on(stopped)
    assert re.search(rf"step-000005 is damaged: {name} .*Using step 4 instead", said)
    assert "from iteration 4 of 5" in said
    assert rows_of(stopped / "before-1") == rows_of(uninterrupted)
    assert (stopped / "before-1/checkpoints/step-000005" / name).exists()
    assert_same_run(stopped, uninterrupted)


def test_nothing_but_torn_checkpoints_is_one_message_and_exit_code_2(stopped, capsys):
    for checkpoint in (stopped / "checkpoints").iterdir():
        cut_short(checkpoint / "policy.safetensors")
    before = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", str(stopped)])
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.err.count("error:") == 1 and "Traceback" not in shown.err
    assert "No checkpoint in" in shown.err and shown.err.count("is damaged") == 3
    assert (stopped / "metrics.jsonl").read_bytes() == before


def test_resuming_a_finished_run_rewrites_its_summary_and_nothing_else(stopped, uninterrupted):
    (stopped / "summary.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in (stopped / "checkpoints").rglob("*.safetensors")}
    go_on(stopped)
    assert summary_of(stopped) == summary_of(uninterrupted)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_same_run(stopped, uninterrupted)


def test_what_the_rewards_were_is_written_where_it_is_missing_and_never_again(stopped, uninterrupted):
    (stopped / "rewards.json").unlink()
    for kept in ((uninterrupted / "rewards.json").read_text(), "{}"):
        go_on(stopped)
        assert (stopped / "rewards.json").read_text() == kept
        (stopped / "rewards.json").write_text("{}")


@pytest.mark.parametrize("kind", ["missing", "empty", "a file"])
def test_what_is_no_run_cannot_be_resumed(tmp_path, capsys, kind):
    place = tmp_path / "place"
    if kind == "empty":
        place.mkdir()
    elif kind == "a file":
        place.write_text("run:")
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", str(place)])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and shown.count("error:") == 1 and str(place) in shown
    assert not place.is_dir() or not any(place.iterdir())


def test_a_run_killed_before_it_had_a_configuration_leaves_its_name_free(random_sd3, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.yaml.tmp").write_text("run: {na")
    (tmp_path / "run/environment.json").write_text("{}")
    (tmp_path / "run/rewards.json").write_text("{}")
    (tmp_path / "run/.rewards.json.tmp").write_text("{")
    data = settings(random_sd3, tmp_path)
    data["run"]["iterations"] = 1
    run_dir, _ = start(data)
    assert (run_dir / "summary.json").exists() and (run_dir / "rewards.json").read_text() != "{}"
