"""The command: what it starts with, what it refuses, how it ends. Each in a process of its own, as users have it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from tests.patience import LONG, until

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "diffrl.cli", "gallery"]


def refused(*arguments, cwd=None) -> str:
    """What the command says as it refuses, with exit code 2 and nothing else."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=LONG)
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


@contextmanager
def started(*arguments, port=0):
    """A gallery at work, and the address that it told."""
    command = [*COMMAND, *map(str, arguments), "--port", str(port), "--no-browser"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        line = process.stdout.readline()
        match = re.search(r"http://\S+", line)
        assert match, (line, process.stderr.read() if process.poll() is not None else "")
        wait_for(match[0], process)
        yield process, match[0]
    finally:
        process.kill()
        process.communicate()


def wait_for(address: str, process) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(address + "state", timeout=10).close()
            return True
        except OSError:
            assert process.poll() is None, process.stderr.read()
            return False

    until(answers)


def test_a_port_that_is_taken_is_refused(made):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(made, "--port", port, "--no-browser")
    assert str(port) in said and "--port 0" in said


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_on_a_free_port_and_ends_at_once(made, end):
    with started(made) as (process, address), socket.create_connection(("127.0.0.1", int(address[17:-1]))) as idle:
        assert address.startswith("http://127.0.0.1:") and not address.startswith("http://127.0.0.1:0")
        half = socket.create_connection(idle.getpeername())
        half.sendall(b"GET / HTTP/1.1\r\nHost: loc")  # a request that never ends
        kept = socket.create_connection(idle.getpeername())
        kept.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")  # a connection that a browser keeps
        assert kept.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(end)
        out, errors = process.communicate(timeout=LONG)  # whoever waits for those connections waits for ever
        half.close()
        kept.close()
    assert process.returncode in ((0, 130) if end == signal.SIGINT else (0, 143, -signal.SIGTERM))
    assert (out, errors) == ("", "")


def test_neither_torch_nor_the_like_is_loaded_to_show_runs(made, tmp_path):
    """An interval takes two functions of scipy, and so numpy; nothing else does."""
    code = """
import sys
from fastapi.testclient import TestClient
import diffrl.cli
from diffrl.gallery import command

def serve(site, host, port, *more):
    from diffrl.gallery.app import make_app
    client = TestClient(make_app(site), base_url="http://127.0.0.1")
    heavy = ["torch", "diffusers", "transformers", "scipy.stats", "matplotlib", "pandas", "pyarrow"]
    light = ("/state", "/compare?columns=made@eval-4")
    asked = (light, [*heavy, "scipy", "numpy"]), (("/", "/compare"), heavy), (("/report",), heavy[:3])
    for paths, avoided in asked:
        for path in paths:
            assert client.get(path).status_code == 200, path
        print([name for name in avoided if name in sys.modules])
command.serve = serve
diffrl.cli.main(["gallery", sys.argv[1], "--port", "0", "--no-browser"])
"""
    done = subprocess.run([sys.executable, "-c", code, str(made)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().splitlines()[-3:] == ["[]"] * 3, done
