"""Images to score, and the command line to score them with."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from reward_models.cli import main
from reward_models.media import to_pil
from reward_models.self_test import drawing

THINGS = [("red", "circle"), ("blue", "square"), ("green", "triangle"), ("yellow", "circle"), ("purple", "square")]


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def summary(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def command(capsys) -> Callable[..., Done]:
    """Run `python -m reward_models ARGUMENTS` in this process."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Done(int(stop.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def score(command) -> Callable[..., Done]:
    """Run `python -m reward_models score ARGUMENTS` in this process."""
    return partial(command, "score")


@pytest.fixture
def command_refused(command) -> Callable[..., str]:
    """Run a command and expect one sentence on stderr, exit code 2 and nothing on stdout."""

    def run(*arguments: object) -> str:
        done = command(*arguments)
        assert done.code == 2, done
        assert done.err.startswith("error: ") and "Traceback" not in done.err and done.out == ""
        return done.err

    return run


@pytest.fixture
def refused(command_refused) -> Callable[..., str]:
    """Run `score` and expect to be refused."""
    return partial(command_refused, "score")


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Five drawings of four sizes, each with its caption; the fourth shows another thing than it says."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, ((color, shape), side) in enumerate(zip(THINGS, (61, 61, 47, 53, 59), strict=True)):
        to_pil(drawing(color, shape, side=side)[:, : side - number]).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("a red circle" if number == 3 else f"a {color} {shape}\n")
    return folder


@pytest.fixture
def rows() -> Callable[[Path], list[dict]]:
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]


SCORER = '''
from pathlib import Path
import torch
from reward_models.base import RewardOutput, ScorerSpec


class Counting:
    """The mean of the red channel times `factor`; notes every sample it is given."""

    spec = ScorerSpec("counting", "Mean red.", (0.0, 2550.0), version="VERSION", uses_prompt=USES)

    def __init__(self, log: str, factor: float = 1.0, weights: str | None = None):
        self.log, self.factor = Path(f"{log}.txt"), factor  # an option that names a file would be taken for weights

    def __call__(self, batch):
        self.spec.require(batch)
        BEFORE
        with self.log.open("a") as stream:
            stream.writelines(f"{len(batch)} {prompt}\\n" for prompt in batch.prompts)
        raw = batch.media[:, 0].float().mean((1, 2)) * self.factor
        return RewardOutput(raw, torch.ones(len(batch), dtype=torch.bool), [None] * len(batch))

    def to(self, device):
        return self
'''


@pytest.fixture
def counting(tmp_path, monkeypatch) -> Callable[..., str]:
    """Write a module with a scorer that notes what it is given; returns its dotted name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(module: str, version: str = "mine", before: str = "", uses_prompt: bool = True) -> str:
        text = SCORER.replace("VERSION", version).replace("BEFORE", before).replace("USES", str(uses_prompt))
        (tmp_path / f"{module}.py").write_text(text)
        return f"{module}:Counting"

    return write
