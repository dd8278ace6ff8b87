"""A reward behind a server: the same run as without; a server that dies neither hangs the run nor becomes a zero."""

import os
import subprocess
import sys
import time

import pytest
import requests

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session
from tests.patience import LONG, held_port, until
from tests.training.harness import go_on, rows_of, settings, start, write_config

SERVER = """
import sys
from reward_models import load_reward
from reward_models.serving.server import serve
serve({"shapes": load_reward("shapes")}, host="127.0.0.1", port=int(sys.argv[1]))
"""


class Server:
    """A reward server in a process of its own."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, "the server does not come up"

    def answers(self):
        try:
            return requests.get(f"{self.url}/health", timeout=5).ok
        except requests.RequestException:
            return False

    def die(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def port():
    with held_port() as port:
        yield port


@pytest.fixture
def server(port):
    made = Server(port)
    yield made
    made.die()


def reward(*servers, **options):
    urls = [one.url for one in servers]
    patient = {"timeout": [30, 60], "retries": 1, "backoff": 0.05, "deadline": LONG, "wait": 60} | options
    return {"name": "remote", "label": "shapes", "options": {"urls": urls, "reward": "shapes", **patient}}


@pytest.mark.long
def test_a_server_that_dies_stops_the_run_and_the_next_one_lets_it_go_on(server, port, random_sd3, tmp_path, capsys):
    data = settings(random_sd3, tmp_path, rewards=[reward(server)], run={"iterations": 4, "checkpoint_every": 1})
    whole, _ = start(settings(random_sd3, tmp_path / "whole", rewards=[{"name": "shapes"}], run=data["run"] | {
        "dir": str(tmp_path / "whole")
    }))  # fmt: skip
    path = write_config(data, tmp_path / "config.yaml")
    killed = []

    from diffrl.run.journal import Journal

    write = Journal.metrics

    def and_kill(journal, row):
        write(journal, row)
        if row["iteration"] == 2 and not killed:
            server.die()
            killed.append(time.monotonic())

    Journal.metrics = and_kill
    try:
        with pytest.raises(SystemExit) as stopped:
            main(["train", str(path)])
    finally:
        Journal.metrics = write
    took = time.monotonic() - killed[0]
    said = capsys.readouterr()
    assert stopped.value.code == 3 and took < LONG
    assert "6 of 6 samples could not be scored" in said.err and "Traceback" not in said.err + said.out
    run_dir = tmp_path / "run"
    rows = rows_of(run_dir)
    assert [row["iteration"] for row in rows] == [0, 1, 2]  # nothing was learnt from what had no score

    again = Server(port)
    try:
        go_on(run_dir)
    finally:
        again.die()
    assert rows_of(run_dir) == rows_of(whole)


def test_no_server_at_the_start_is_told_before_anything_is_written(port, random_sd3, tmp_path):
    gone = type("Gone", (), {"url": f"http://127.0.0.1:{port}"})
    from diffrl.config.load import make_config

    config = make_config(settings(random_sd3, tmp_path, rewards=[reward(gone, wait=0.2)]))
    with pytest.raises(ConfigError, match=r"rewards.0: .*127.0.0.1"):
        open_session(Preview(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()
