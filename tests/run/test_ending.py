"""A run that does not reach its last iteration says why, and never ends as if it had."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import diffrl.lifecycle as run_module
import diffrl.run.completion as completion
from diffrl.cli import main
from diffrl.errors import DiffrlError
from diffrl.terminal.exits import broken_peer
from diffrl.training.loop import Trainer
from tests.patience import LONG
from tests.tiers import daily
from tests.training.harness import settings, start, write_config

ROOT = Path(__file__).parents[2]
HANGS = """
import ctypes, sys, threading, time
from diffrl.terminal import signals

def in_c():  # a lock that is taken twice: no handler ever runs again
    libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    for call in (libc.pthread_mutex_init, libc.pthread_mutex_lock, libc.pthread_mutex_lock):
        call(lock, None)

def deaf():  # what is raised here does not get through
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

signals.TWICE, signals.UNWIND, signals.ANSWER = 0.05, 0.1, float(sys.argv[2])
stop = signals.StopSignal()
stop.kept = lambda: "What is kept."
with stop.watched(), stop.finishing():
    print("ready", flush=True)
    {"in_c": in_c, "deaf": deaf, "asleep": lambda: time.sleep(600)}[sys.argv[1]]()
"""


def hang(where, answer, *numbers):
    """Let a watched process hang, and send it signals; its exit code and stderr."""
    command = [sys.executable, "-c", HANGS, where, str(answer)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            process.stdout.readline()
            said = ""
            for number in numbers:
                process.send_signal(number)
                said += process.stderr.readline()  # it has come: two that wait would be one
                time.sleep(0.1)  # and two at once the same one
            return process.wait(timeout=LONG), said + process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize("where", daily(["in_c", "deaf", "asleep"], ["asleep"]))
def test_a_signal_that_nothing_answers_ends_the_process_in_words(where):
    code, said = hang(where, 0.1, signal.SIGTERM)
    assert code == 143 and "SIGTERM" in said and "nothing answered" in said and "What is kept." in said


@pytest.mark.long
@pytest.mark.parametrize(("where", "number"), [("in_c", signal.SIGTERM), ("deaf", signal.SIGINT)])
def test_a_second_signal_ends_the_process_wherever_it_hangs(where, number):
    code, said = hang(where, 3600, number, number)
    assert code == 128 + number and "could not be obeyed" in said and "What is kept." in said


@pytest.mark.long
def test_a_forked_process_has_its_own_signals():
    """A scorer's workers are ended by SIGTERM, and their parent does not take it for its own."""
    program = """
import os, signal, time
from diffrl.terminal import signals
signals.ANSWER = 0.1
stop = signals.StopSignal()
with stop.watched(), stop.finishing():
    child = os.fork()
    if child == 0:
        time.sleep(600)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    time.sleep(0.5)
    assert os.WTERMSIG(status) == signal.SIGTERM and not stop.received
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=LONG
    )
    assert done.returncode == 0, done.stderr


def signalled(original, number=signal.SIGTERM):
    """The same function, at whose beginning a signal comes."""

    def with_signal(*args, **kwargs):
        os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    return with_signal


def ended(config, capsys):
    """Exit code of a run through the command line, and what it showed."""
    with pytest.raises(SystemExit) as end:
        main(["train", str(config)])
    return end.value.code or 0, " ".join(capsys.readouterr().out.split())


def test_a_signal_while_it_loads_ends_it_in_words(random_sd3, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "open_session", signalled(run_module.open_session))
    code, said = ended(write_config(settings(random_sd3, tmp_path), tmp_path / "config.yaml"), capsys)
    assert code == 143 and "SIGTERM" in said and "Nothing was trained" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("owner", "name"), [(completion, "seed_rng"), (Trainer, "evaluate")])
def test_a_signal_just_before_the_loop_ends_it_in_words(random_sd3, tmp_path, monkeypatch, capsys, owner, name):
    monkeypatch.setattr(owner, name, signalled(getattr(owner, name)))
    code, said = ended(write_config(settings(random_sd3, tmp_path), tmp_path / "config.yaml"), capsys)
    assert code == 143 and "SIGTERM" in said and "There is no checkpoint yet" in said and "--resume" in said
    assert "SIGTERM" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.long
def test_a_signal_while_the_summary_is_written_lets_it_be_finished(random_sd3, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(completion, "write_curve", signalled(completion.write_curve))
    data = settings(random_sd3, tmp_path, run={"iterations": 1})
    code, said = ended(write_config(data, tmp_path / "config.yaml"), capsys)
    assert code == 0 and "SIGTERM came when everything was trained" in said
    assert all((tmp_path / "run" / name).exists() for name in ("summary.json", "curve.png", "report.html"))


@pytest.mark.parametrize("stranger", [SystemExit(0), KeyboardInterrupt()], ids=repr)
@pytest.mark.long
def test_an_exit_that_is_not_ours_is_a_failure(random_sd3, tmp_path, monkeypatch, stranger):
    def ends(trainer):
        raise stranger

    monkeypatch.setattr(Trainer, "iterate", ends)
    with pytest.raises(DiffrlError, match=f"ended the program by {type(stranger).__name__}"):
        start(settings(random_sd3, tmp_path), drawn=True)
    assert "Failed: DiffrlError" in (tmp_path / "run/log.txt").read_text()
    assert (tmp_path / "run/report.html").exists()


def test_an_exit_while_it_loads_is_a_failure_too(random_sd3, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "open_session", lambda *args: sys.exit(0))
    code, _ = ended(write_config(settings(random_sd3, tmp_path), tmp_path / "config.yaml"), capsys)
    assert code == 2


def test_a_full_disk_is_a_sentence_even_where_it_has_no_name(random_sd3, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(completion, "finish", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    config = write_config(settings(random_sd3, tmp_path, run={"iterations": 1}), tmp_path / "config.yaml")
    with pytest.raises(SystemExit) as end:
        main(["train", str(config)])
    assert end.value.code == 2 and "error: No space left" in capsys.readouterr().err


def test_a_broken_exchange_is_told_from_other_errors():
    gone = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]")
    assert broken_peer(gone, 2) and not broken_peer(gone, 1)
    assert not broken_peer(RuntimeError("The size of tensor a (3) must match the size of tensor b (5)"), 2)
    assert not broken_peer(DiffrlError("nccl"), 2)
