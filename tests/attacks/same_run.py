"""What a run leaves, and in what two runs differ: numbers, samples, pictures, the last checkpoint; not their times."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

VARYING = re.compile(r"seconds/.*|cost/seconds|peak_memory_bytes")
"""Metrics that differ from machine to machine and from time to time."""
VARYING_STATE = ("seconds", "peak_memory_bytes")
VARYING_SUMMARY = ("seconds", "peak_memory_bytes", "run")


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what varies."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not VARYING.fullmatch(k)} for line in lines]


def last_row(run_dir: Path) -> dict[str, Any]:
    """The last of them."""
    return rows(run_dir)[-1]


def samples(run_dir: Path) -> dict[str, Any]:
    """Every stored sample by its address, with the hash of its picture."""
    from diffrl.tracking.reward_rows import ROWS

    found = {}
    with sqlite3.connect(run_dir / "samples.sqlite") as database:
        database.row_factory = sqlite3.Row
        rewards: dict[int, list[Any]] = {}
        table = ROWS
        for number, name, raw in database.execute(f"SELECT sample_id, name, raw FROM {table} ORDER BY sample_id, name"):
            rewards.setdefault(number, []).append((name, raw))
        for row in map(dict, database.execute("SELECT * FROM samples")):
            number, picture = row.pop("id"), row["picture"]
            address = f"{row['stage']}-{row['iteration']}/{row['group_id']}-{row['root']}-{row['path']}"
            found[address] = (row, rewards.get(number), digest(run_dir / picture) if picture else None)
    database.close()
    return found


def checkpoint(run_dir: Path) -> dict[str, Any]:
    """The newest checkpoint: each tensor's hash, and the state without what varies."""
    from diffrl.checkpoint.files import load_checkpoint

    found = load_checkpoint(max((run_dir / "checkpoints").glob("step-*")))
    state: dict[str, Any] = {
        "state": {k: v for k, v in found.state.items() if k not in VARYING_STATE},
        "step": found.step,
    }
    for group in found.tensors:
        named: Mapping[str, Any] = found.tensors[group]
        for name in named:
            tensor = named[name]
            data = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            state[f"{group}/{name}"] = (str(tensor.dtype), tuple(tensor.shape), data)
    return state


def summary(run_dir: Path) -> dict[str, Any]:
    """summary.json without what varies."""
    found = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return {k: v for k, v in found.items() if k not in VARYING_SUMMARY}


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


EVERYTHING: tuple[Callable[[Path], Any], ...] = (rows, samples, checkpoint, summary)


def differences(one: Path, other: Path, parts: Sequence[Callable[[Path], Any]] = EVERYTHING) -> list[str]:
    """In what two finished runs differ, a line each; none if they are the same bit for bit.

    Args:
        one: a run.
        other: the run that it should be.
        parts: functions of this file.
    """
    found = []
    for what in parts:
        try:
            ours, theirs = what(one), what(other)
        except Exception as error:  # whatever cannot be read is a difference, and the others are looked at too
            found.append(f"{what.__name__} cannot be read: {type(error).__name__}: {str(error)[:300]}")
            continue
        if isinstance(ours, list):
            ours, theirs = dict(enumerate(ours)), dict(enumerate(theirs))
        if keys := [
            key for key in {**ours, **theirs} if key not in ours or key not in theirs or ours[key] != theirs[key]
        ]:
            first = keys[0]
            pair = f"{str(ours.get(first))[:200]} and {str(theirs.get(first))[:200]}"
            found.append(f"{what.__name__}: {len(keys)} of {len(theirs)} differ, {first} first: {pair}")
    return found
