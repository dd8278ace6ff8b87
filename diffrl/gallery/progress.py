"""How far a run is, and what its held-out rewards did: read from its small files, and cheap for long runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from diffrl.files import open_own, read_own
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.records import State, falls
from diffrl.gallery.runs import MARKS, RunSource, changed
from diffrl.tracking.endings import FAILED, RESUMED, STOPPED
from diffrl.tracking.health import Health, health_of
from diffrl.tracking.metrics import parse_row

HELD_OUT = "held_out/"
POINTS = 200
"""Training rows, at most, that are read of a long run: as many as a small curve can show."""
MOST = 2**53
"""Size from which a whole number is no count of iterations."""
FRESH = 120
"""Seconds after its last write in which a run counts as running, where its lock cannot be seen."""
ALARM = re.compile(rf"^{STOPPED}|^{FAILED}|\((?:guards\.|rollout\.(?:explore|draw)\.fidelity\))")
"""Lines of log.txt: the run's end by a guard or an error; what a guard, the sentinel or the fidelity watch says, each
with the name of its setting in parentheses."""
COURSE = re.compile(r"\d+/\d+  |held-out after \d+ iterations: ")
"""Lines of log.txt that tell a run's course, which the gallery draws."""
ENDED = {STOPPED: "stopped by a guard", FAILED: "ended by an error"}


@dataclass(frozen=True)
class Change:
    """A held-out reward in the first and in the last evaluation; None where it failed. `lower`: less is better."""

    name: str
    before: float | None
    after: float | None
    lower: bool = False

    @property
    def change(self) -> float | None:
        """After less before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Progress:
    """A run's course."""

    # "finished", "running" or "stopped"; "unknown" where config.yaml, which a run begins with, is missing, and so may
    # all else be that tells
    state: str
    done: int  # iterations
    total: int | None  # iterations that were asked for; None if config.yaml does not tell
    written: float  # seconds since 1970 of the last change
    rows: Sequence[Mapping[str, Any]]  # of metrics.jsonl that have held-out values
    training: Sequence[tuple[int, float]]  # iteration and mean training reward, thinned to `POINTS`
    broken: int  # lines of metrics.jsonl that are no rows, apart from a last one that is being written
    ended: str = ""  # how it was stopped, as far as its log tells: one of `ENDED`, "" otherwise
    lower: Collection[str] = ()  # labels of held-out rewards of which less is better

    @cached_property
    def evaluations(self) -> list[tuple[int, dict[str, float | None]]]:
        """Iteration and held-out values by reward name."""
        every = []
        for row in self.rows:
            names = [name for name in row if name.startswith(HELD_OUT)]
            every.append((row["iteration"], {name.removeprefix(HELD_OUT): finite(row[name]) for name in names}))
        return every

    @cached_property
    def health(self) -> Health | None:
        """What the evaluations say of the weights, by the first held-out reward; None without one."""
        return health_of(self.rows, self.headline[0].name, self.headline[0].lower) if self.headline else None

    @property
    def best(self) -> tuple[int, float] | None:
        """Iteration and value of the best evaluation by the first held-out reward."""
        step = self.health.best(list(self.health.values)) if self.health else None
        return (step, self.health.values[step]) if self.health and step is not None else None

    @property
    def changes(self) -> list[Change]:
        """Every held-out reward, whole ones and parts, the first evaluation against the last."""
        if not self.evaluations:
            return []
        first, last = self.evaluations[0][1], self.evaluations[-1][1]
        names = dict.fromkeys([*first, *last])
        return [Change(name, first.get(name), last.get(name), falls(name, self.lower)) for name in names]

    @property
    def headline(self) -> list[Change]:
        """The held-out rewards without their parts."""
        return [change for change in self.changes if "/" not in change.name]


def progress(run: RunSource) -> Progress:
    """Return how far a run is.

    Raises:
        GalleryError: a file of it cannot be read (503).
    """
    rows, training, done, broken = read_rows(run.place("metrics.jsonl"))
    written = max(changed(run.path / name) for name in MARKS) / 1e9
    ended = how_it_ended(run)
    state = state_now(run, written, ended)
    ended = "" if state == "finished" else ended
    lower = run.lower_is_better(State("eval", done))
    return Progress(state, done, asked(run), written, rows, training, broken, ended, lower)


def state_now(run: RunSource, written: float, ended: str) -> str:
    """Return a `Progress.state`: what becomes of a killed run by the time that passes alone.

    Args:
        run: which.
        written: seconds since 1970 of its last change.
        ended: how it was stopped; see `Progress`.
    """
    locked = is_locked(run.path / ".lock")
    if not locked and (run.path / "summary.json").is_file():
        return "finished"
    if not locked and not ended and not (run.path / "config.yaml").is_file():
        return "unknown"
    fresh = 0 <= time.time() - written < FRESH  # by this machine's clock, which need not be that of the run's
    return "running" if (locked or fresh or run.unchanged_for(written) < FRESH) and not ended else "stopped"


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[tuple[int, float]], int, int]:
    """Return evaluations, training rewards, the last iteration and how many lines are broken; few lines are parsed.

    Raises:
        GalleryError: the file cannot be read (503).
    """
    try:
        lines = read_own(path).split(b"\n") if path.exists() else []
    except OSError as error:
        raise GalleryError(f"The metrics in {path} cannot be read: {error}.", 503) from error
    lines, unfinished = lines[:-1], lines[-1:]
    marked = {i for i, line in enumerate(lines) if b'"held_out/' in line}
    every = max(1, -(-(len(lines) - 1) // (POINTS - 1)))
    thinned = {*range(0, len(lines), every), *range(len(lines))[-1:]}
    evaluations: list[dict[str, Any]] = []
    training: list[tuple[int, float]] = []
    done = broken = 0
    for i in sorted(marked | thinned):
        row = _row(lines[i])
        if row is None:
            broken += 1
            continue
        done = max(done, row["iteration"])
        if any(name.startswith(HELD_OUT) for name in row):
            evaluations.append(row)
        if (mean := finite(row.get("reward/mean"))) is not None and i in thinned:
            training.append((row["iteration"], mean))
    if unfinished and (row := _row(unfinished[0])):
        done = max(done, row["iteration"])
    return evaluations, training, done, broken


def first_rewards(run: RunSource) -> list[str]:
    """Return names of the held-out rewards without parts, in their order, from the first evaluation alone."""
    try:
        with open_own(run.place("metrics.jsonl")) as file:
            line = next((line for line in file if b'"held_out/' in line), b"")
    except (GalleryError, OSError):
        return []
    names = (name.removeprefix(HELD_OUT) for name in _row(line) or {} if name.startswith(HELD_OUT))
    return [name for name in names if "/" not in name]


def asked(run: RunSource) -> int | None:
    """Return iterations that the configuration asks for; None where it does not tell."""
    iterations = setting(run, "iterations")
    return iterations if type(iterations) is int and 0 <= iterations < MOST else None


def how_it_ended(run: RunSource) -> str:
    """Return one of `ENDED` if the run was stopped so and has not been resumed since; else nothing."""
    try:
        lines = run.read_text("log.txt").splitlines()
    except (GalleryError, OSError):
        return ""
    for line in reversed(lines):
        if line.startswith((STOPPED, FAILED, RESUMED)):
            return next((words for mark, words in ENDED.items() if line.startswith(mark)), "")
    return ""


def updates_once(run: RunSource) -> bool:
    """Return whether an iteration is one update, which compares the policy that sampled with itself."""
    names = ("old_decay_max", "old_limit")  # the second as older runs call it
    old_policy_is_ema = any(setting(run, name, "objective") for name in names)
    return setting(run, "updates_per_iteration", "train") == 1 and not old_policy_is_ema


def settings(run: RunSource) -> dict[str, Any]:
    """Return the configuration; nothing where config.yaml cannot be read."""
    try:
        config = _config(run.read_text("config.yaml"))
    except (GalleryError, OSError):
        return {}
    return config if isinstance(config, dict) else {}


def setting(run: RunSource, name: str, section: str = "run") -> object:
    """Return an entry of a section of the configuration; None where there is none, or config.yaml cannot be read."""
    of_section = settings(run).get(section)
    return of_section.get(name) if isinstance(of_section, dict) else None


def recipe(run: RunSource) -> tuple[str, str] | None:
    """Return the configuration but for seed, name and place as text, and the seed; None where it cannot be read."""
    try:
        config = settings(run)
        run_section = {key: value for key, value in config["run"].items() if key not in ("seed", "name", "dir")}
        return json.dumps({**config, "run": run_section}, sort_keys=True, default=str), str(config["run"].get("seed"))
    except (TypeError, KeyError, AttributeError, ValueError):
        return None


@lru_cache(maxsize=512)
def _config(text: str) -> Any:
    """Return the configuration; None where it cannot be read, which may take seconds too."""
    import yaml

    from reward_models.common.yaml12 import Loader

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def log_messages(run: RunSource) -> tuple[list[tuple[str, int]], list[str]]:
    """Return log.txt: alarms of guards and sentinel with how often each came, the last first; and the other lines."""
    lines = [line.strip() for line in run.read_text("log.txt").splitlines() if line.strip()]
    counts = Counter(line for line in reversed(lines) if ALARM.search(line))  # keeps the order of first sight
    return list(counts.items()), [line for line in lines if not ALARM.search(line) and not COURSE.match(line)]


def is_locked(lock: Path) -> bool:
    """Return whether a process of this machine trains there, without a lock of our own, which could stop a run."""
    try:
        stat = lock.stat()
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return is_among(locks, stat.st_dev, stat.st_ino)


def is_among(locks: str, device: int, number: int) -> bool:
    """Return whether /proc/locks names a file as one that a process has locked as a whole.

    Args:
        locks: text of /proc/locks.
        device: that the file lies on. One without a disk of its own (major number 0: btrfs, overlays) may be called
            otherwise there, so that only the number tells.
        number: of the file on its device.
    """
    major, minor = os.major(device), os.minor(device)
    end = f"{major:02x}:{minor:02x}:{number}" if major else f":{number}"
    places = [line.split()[5] for line in locks.splitlines() if "FLOCK" in line and len(line.split()) > 5]
    return any(entry == end or (not major and entry.endswith(end)) for entry in places)


def _row(line: bytes) -> dict[str, Any] | None:
    """Return a row with a number of its iteration."""
    row = parse_row(line)
    return row if row is not None and type(row.get("iteration")) is int and abs(row["iteration"]) < MOST else None


def marks(course: Progress | None) -> list[tuple[str, int, str]]:
    """Return words, iteration and option of the best evaluation, and of the newest healthy one if that is another."""
    if course is None or (health := course.health) is None:
        return []
    trained = [step for step in health.values if step]
    best, sound = health.best(trained), health.healthy(trained)
    marked = []
    if best is not None:
        marked.append((f"best checkpoint by {health.reward}, {health.values[best]:.3f}", best, "--best"))
    return marked if sound in (best, None) else [*marked, ("newest healthy", sound, f"--step {sound}")]


def marked(run: RunSource) -> dict[int, str]:
    """Return what evaluations of a run are marked as, by iteration; nothing of one whose files cannot be read."""
    try:
        return {iteration: words.partition(" by ")[0] for words, iteration, _ in marks(progress(run))}
    except GalleryError:
        return {}
