"""Runs that are ended at random moments, by kill -9 or by a disk that fills, and resumed until they are done."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.attacks import configurations, same_run
from tests.attacks.trial import MARK, Ended, Send, Trial, command

RUN: dict[str, Any] = {
    "run": {"name": "run", "dir": ".", "iterations": 6, "checkpoint_every": 2, "eval_every": 3},
    "eval": {"samples": 6, "steps": 2},
    "track": {"pictures_per_iteration": 4, "pictures_per_evaluation": 4, "trees": {"prompts": 1, "every": 2}},
    "train": {"ema": {"decay": 0.7}, "schedule": "cosine", "warmup_updates": 2},
}
LAUNCH = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
"""Two ranks; model.device says that they are on the CPU."""
LONGEST = 300.0
"""Seconds that a run, or the launcher after a rank's death, may take before it hangs."""
AT_A_CHECKPOINT = 0.4
"""Share of the kills that come while a checkpoint is written."""


class Attempt(ABC):
    """A training process, or several, that can be ended rudely.

    Args:
        start: when it was started, on the monotonic clock.
    """

    start: float

    @abstractmethod
    def alive(self) -> bool:
        """Whether it goes on."""

    @abstractmethod
    def kill(self, rng: random.Random) -> str:
        """End it by SIGKILL; what was killed."""

    @abstractmethod
    def ended(self) -> Ended:
        """Wait for its end; its exit code stands under "code"."""


class Alone(Attempt):
    """One process, forked from this one, which has imported everything."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.trial = Trial(_command, folder, words)
        self.start = self.trial.start

    def alive(self) -> bool:
        """Whether it goes on."""
        return self.trial.process.is_alive()

    def kill(self, rng: random.Random) -> str:
        """End it by SIGKILL."""
        self.trial.kill()
        return "the process"

    def ended(self) -> Ended:
        """Wait for its end."""
        return self.trial.ended(LONGEST)


class Sharded(Attempt):
    """Two ranks under accelerate's launcher, the weights split over them."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.said = folder.with_name(f"{folder.name}.output")
        script = configurations.ROOT / "scripts/train.py"
        launcher = [sys.executable, "-m", "accelerate.commands.launch", *LAUNCH.split(), str(script), *words[1:]]
        environment = os.environ | {"PYTHONPATH": str(configurations.ROOT)}
        with self.said.open("wb") as sink:
            self.process = subprocess.Popen(launcher, cwd=folder, stdout=sink, stderr=sink, env=environment)
        self.start = time.monotonic()

    def alive(self) -> bool:
        """Whether the launcher goes on."""
        return self.process.poll() is None

    def ranks(self) -> list[psutil.Process]:
        """The processes that train; the launcher's children with a rank of their own."""
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "LOCAL_RANK" in child.environ():
                        found.append(child)
        return found

    def kill(self, rng: random.Random) -> str:
        """End one rank, so that the launcher ends the other, or everything at once."""
        ranks = self.ranks()
        if ranks and rng.random() < 0.5:
            rng.choice(ranks).kill()
            return "one rank of two"
        for process in [psutil.Process(self.process.pid), *ranks]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return "both ranks and their launcher"

    def ended(self) -> Ended:
        """Wait for its end, and for the ranks'."""
        try:
            code: int | None = self.process.wait(max(1.0, self.start + LONGEST - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
            for process in [*self.ranks(), psutil.Process(self.process.pid)]:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            self.process.wait()
        output = self.said.read_bytes().decode("utf-8", "replace")
        return Ended(output, [("code", code)], 0, code is None, time.monotonic() - self.start)


def _command(send: Send, words: list[str]) -> None:
    send(("code", command(words)))


def write_config(folder: Path, sharded: bool) -> Path:
    """The configuration of the run; with weights split over ranks if `sharded`."""
    data = copy.deepcopy(configurations.base("tiny-sd3/diffrl.yaml"))
    for section, values in RUN.items():
        data[section] |= values
    if sharded:
        data["model"]["device"] = "cpu"
        data["train"]["sharding"] = "fsdp"
        data["track"]["trees"] = None
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def words_for(folder: Path) -> list[str]:
    """Go on with the folder's run, or start it if it cannot be resumed yet."""
    return ["train", "--resume", "run"] if (folder / "run/config.yaml").exists() else ["train", "config.yaml"]


class Course:
    """A run that is ended and resumed until it is done, and the same run that nobody disturbed.

    Args:
        kind: how it is started.
        folder: of the undisturbed run; those that are disturbed lie beside it.
    """

    def __init__(self, kind: Callable[[Path, list[str]], Attempt], folder: Path) -> None:
        self.kind, self.folder = kind, folder
        folder.mkdir(parents=True)
        write_config(folder, kind is Sharded)
        attempt, start = kind(folder, words_for(folder)), time.monotonic()
        while attempt.alive() and not (folder / "run/metrics.jsonl").exists():
            time.sleep(0.01)
        self.start = time.monotonic() - start
        found = attempt.ended()
        if found.last("code") != 0:
            raise RuntimeError(f"The run could not be made:\n{found.output[-3000:]}")
        self.seconds = found.seconds

    def fresh(self, name: str) -> Path:
        """A folder for a run that is disturbed."""
        folder = self.folder.with_name(name)
        folder.mkdir()
        shutil.copy(self.folder / "config.yaml", folder)
        return folder

    def disturbed(self, rng: random.Random, folder: Path) -> str:
        """Start or resume the run and kill it at a random moment; what and when, empty if it had ended before."""
        attempt = self.kind(folder, words_for(folder))
        checkpoints, said = folder / "run/checkpoints", ""
        if rng.random() < AT_A_CHECKPOINT:
            while attempt.alive() and not list(checkpoints.glob(".writing-*")):
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.05))
            said = "while a checkpoint was written"
        else:
            moment = rng.uniform(0.9 * self.start, 0.95 * self.seconds)
            while attempt.alive() and time.monotonic() - attempt.start < moment:
                time.sleep(0.005)
            said = f"after {moment:.2f} s"
        killed = attempt.alive()
        what = attempt.kill(rng) if killed else ""
        found = attempt.ended()
        if found.hangs:
            raise RuntimeError(f"It still goes on {LONGEST:g} s after its start, with {what} killed {said}.")
        return f"{what} {said}" if killed else ""

    def seen_through(self, folder: Path) -> list[str]:
        """Resume the run to its end; in what it differs from the undisturbed one, and whatever else is wrong."""
        found = self.kind(folder, words_for(folder)).ended()
        if found.last("code") != 0:
            return [f"resuming ended with {found.last('code')}: {found.output[-1500:]}"]
        wrong = ["a traceback was printed"] if MARK in found.output else []
        return [*wrong, *same_run.differences(folder / "run", self.folder / "run")]


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes, in memory.

    Raises:
        PermissionError: only root may make one.
    """
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "diffrl-attack", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def size_of(folder: Path) -> int:
    """Bytes that a folder's files take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
