"""Commands in processes of their own, several at once, and how they end."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from PIL import Image

from diffrl.studies.compare import processes
from diffrl.studies.compare.processes import STOPPED, Processes, threads_each
from diffrl.terminal.exits import Terminated
from tests.patience import until


def test_jobs_go_on_at_once():
    meeting, told = threading.Barrier(3), []
    Processes(3).each(
        lambda job: meeting.wait(60), "abc", lambda job, _: told.append(job)
    )  # one alone would never pass
    assert sorted(told) == ["a", "b", "c"]


def test_one_at_a_time_keeps_the_order_and_tells_in_the_main_thread():
    order, told = [], []
    Processes(1).each(order.append, "cab", lambda job, _: told.append((job, threading.current_thread())))
    assert order == ["c", "a", "b"]
    assert told == [(job, threading.main_thread()) for job in "cab"]


def test_a_mistake_ends_the_others():
    begun = []

    def work(job):
        begun.append(job)
        raise RuntimeError(job)

    workers = Processes(1)
    with pytest.raises(RuntimeError, match="a"):
        workers.each(work, "abcdefgh", lambda job, _: None)
    assert len(begun) < 8


def test_exit_codes_and_logs(tmp_path):
    log = tmp_path / "log"
    assert Processes().run(["check", str(tmp_path / "none.yaml")], log) == 2
    assert "none.yaml" in log.read_text()


@pytest.mark.long
def test_a_signal_ends_what_has_started(tmp_path):
    """A gallery would serve for ever; SIGTERM to us reaches it, and nothing begins afterwards."""
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "0.png")
    workers, log, codes = Processes(2), tmp_path / "log", []

    def work(job):
        codes.append(workers.run(["gallery", str(tmp_path / "pictures"), "--port", "0", "--no-browser"], log))

    def stop():
        until(lambda: codes or log.is_file() and "http://" in log.read_text(), 120)
        if not codes:
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(Terminated):
        workers.each(work, [1], lambda job, _: None)
    stopping.join()
    assert len(codes) == 1
    assert workers.run(["--help"], log) == STOPPED


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_each(1) == {}
    assert threads_each(2) == {"OMP_NUM_THREADS": str(max(1, processes.cores() // 2))}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_each(2) == {}
