"""The README does what it says: its blocks run, one after the other, in a fresh copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SET_UP = ("make demo", "make test")  # the first is `diffrl train configs/quickstart.yaml`, the second runs this test


def blocks(text):
    """(language, body) of every fenced block that names its language, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def clone(tmp_path):
    """The files that git tracks, as they are now."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_every_block_of_the_readme_runs_top_down_in_a_fresh_clone(clone):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(clone)}
    ran = []
    for language, body in blocks((clone / "README.md").read_text(encoding="utf-8")):
        if language == "bash":
            body = "\n".join(line for line in body.splitlines() if not line.startswith(SET_UP))
            command = ["bash", "-e", "-c", body]
        else:
            assert language == "python"
            command = [sys.executable, "-c", body]
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, f"{body}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        ran.append(body)
    text = "\n".join(ran)
    for command in ("train configs", "train --resume", "generate", "evaluate", "export", "gallery", "compare", "score"):
        assert f"diffrl {command}" in text
