"""The directory of a run: made once, never overwritten, and opened again to resume."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from diffrl.allocator import allocator_settings
from diffrl.config import Config, dump_config, load_config
from diffrl.errors import ConfigError
from diffrl.files import flush, read_own, replacing, write_json
from diffrl.rewards.score import WeightedScorer
from diffrl.tracking.places import require_run_dir
from diffrl.tracking.rewards import HELD_OUT, REWARDS, TRAINING
from diffrl.training.inputs import versions

SUMMARY, REPORT = "summary.json", "report.html"

LOCK = ".lock"

NOT_COMPARED = ("run_id", "versions", "prompts", "allocator")
"""Of environment.json: what names a run, what is compared one by one, and notes."""

BEFORE_CONFIG = ("environment.json", REWARDS)

UNFINISHED = {LOCK, ".config.yaml.tmp", *BEFORE_CONFIG, *(f".{name}.tmp" for name in BEFORE_CONFIG)}
"""All that a run leaves which was killed before it could be resumed; a new run may take its place."""


def new_run_dir(config: Config) -> Path:
    """Return the path of a new run.

    Raises:
        ConfigError: something is there already, or nothing can be made there.
    """
    path = Path(config.run.dir) / config.run.name
    if path.exists() and (not path.is_dir() or any(entry.name not in UNFINISHED for entry in path.iterdir())):
        raise ConfigError(
            f"A run never overwrites another. {path} already exists. Choose another name (run.name=...), or go on with "
            f"it: diffrl train --resume {path}."
        )
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        reason = "may not be written to" if above.is_dir() else "is a file"
        raise ConfigError(
            f"run.dir must be a folder to make runs in. Got {config.run.dir}: {above} {reason}. Name another."
        )
    return path


def create_run_dir(path: Path, config: Config, environment: dict[str, Any], rewards: Mapping[str, Any]) -> None:
    """Make the directory with the resolved configuration, what the run runs on, and what its rewards are."""
    write_json(path / "environment.json", environment)
    write_json(path / REWARDS, rewards)
    write_config(path, config)  # from here on the run can be resumed


def write_config(path: Path, config: Config) -> None:
    """Write a run's resolved configuration: all of it or nothing, even if the power goes."""
    with replacing(path / "config.yaml") as temporary:
        temporary.write_text(dump_config(config), encoding="utf-8")
        flush(temporary)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the run's directory if need be and keep other processes from training in it; the lock dies with its holder.

    Raises:
        ConfigError: another process trains there.
    """
    path.mkdir(parents=True, exist_ok=True)
    with (path / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"One process at a time trains a run. Another one is training {path}. Wait for it, or end it."
            ) from error
        yield


def note_resumption(
    path: Path, now: dict[str, Any], step: int = 0, changed: Mapping[str, tuple[Any, Any]] | None = None
) -> list[str]:
    """Add what a resumed run runs on to its environment.json; what differs from its start, one message each.

    Training needs nothing of that file: one that is damaged is set aside, and a new one begins here.

    Args:
        path: the run.
        now: what it runs on, as `environment` gives it.
        step: iterations of the checkpoint that it goes on from.
        changed: keys of the configuration that are not what that checkpoint was trained with, then and now.
    """
    change = {key: {"was": was, "is": is_now} for key, (was, is_now) in (changed or {}).items()}
    entry = now | ({"changed": {"after_iteration": step, **change}} if change else {})
    file = path / "environment.json"
    record = _read_environment(file)
    if record is None:
        aside = ""
        if os.path.lexists(file):
            os.replace(file, path / "environment.damaged.json")
            aside = " The damaged one is environment.damaged.json now."
        write_json(file, {**now, "resumed": [entry]})
        return [f"{file} was missing or damaged: what this run began on is not known, a new one was written.{aside}"]
    write_json(file, {**record, "resumed": [*record.get("resumed", []), entry]})
    before, after = ({**one, **one["versions"]} for one in (record, now))
    names = [name for name in after if name not in NOT_COMPARED and before.get(name) != after[name]]
    return [
        f"This run began with {name} {before.get(name)} and goes on with {after[name]}: results may differ by rounding."
        for name in names
    ]


def _read_environment(file: Path) -> dict[str, Any] | None:
    """Return what a run began on; None if that cannot be read."""
    try:
        record = json.loads(read_own(file)) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("resumed", []), list):
        return None
    known = isinstance(record.get("run_id"), str) and isinstance(record.get("versions"), dict)
    return record if known else None


def note_rewards(path: Path, rewards: Mapping[str, Any]) -> None:
    """Write rewards.json in a run that has none: an older diffrl began it."""
    if not (path / REWARDS).exists():
        write_json(path / REWARDS, rewards)


def open_run_dir(path: str | Path) -> tuple[Path, Config]:
    """Return a run and its resolved configuration.

    Raises:
        ConfigError: there is no run.
    """
    directory = require_run_dir(path)
    return directory, load_config(directory / "config.yaml")


def environment(device: torch.device, dtype: str, world_size: int) -> dict[str, Any]:
    """Return what the run really runs on, and an id that is its own."""
    return {
        "run_id": uuid.uuid4().hex[:12],
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "allocator": allocator_settings() if device.type == "cuda" else None,
        "dtype": dtype,
        "processes": world_size,
    }


def rewards_record(training: Sequence[WeightedScorer], held_out: Sequence[WeightedScorer]) -> dict[str, Any]:
    """Return what is known of the rewards, as rewards.json keeps it; see `diffrl.tracking.rewards`."""
    return {
        TRAINING: {scorer.name: _facts(scorer) for scorer in training},
        HELD_OUT: {scorer.name: _facts(scorer) for scorer in held_out},
    }


def _facts(scorer: WeightedScorer) -> dict[str, Any]:
    """Return a reward as plain JSON values, whatever types a stranger's scorer describes itself in."""
    spec = scorer.scorer.spec
    return {
        "name": str(spec.name),
        "description": str(spec.description),
        "range": [_number(bound) for bound in spec.range],
        "higher_is_better": bool(spec.higher_is_better),
        "version": str(spec.version),
        "weight": _number(scorer.weight),
        "shift": _number(scorer.shift),
        "scale": _number(scorer.scale),
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Return the run's summary; empty if it has none that can be read."""
    try:
        summary = json.loads(read_own(run_dir / SUMMARY))
    except (OSError, ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}
