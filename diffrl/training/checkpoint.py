"""Durable checkpoints: `checkpoints/step-000040/` holds safetensors, JSON and a manifest of checksums; no pickle.

A directory is written beside its name, flushed to disk and only then renamed, so a kill at any moment leaves either the
whole checkpoint or none. One process writes, any number may read. Names that begin with a dot are work in progress:

    .writing-step-000040     an unfinished save; the next save removes it
    .replaced-step-000040    moved aside by a second save of the same step; stands in for it until that save is in place
    .discarded-step-000040   being deleted; the next save finishes that
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffrl.errors import CheckpointError

FORMAT = 1
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the step, named CPU tensors by group ("policy", "optimizer", ...), and JSON values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def save_checkpoint(
    directory: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> Path:
    """Write `step-<step>` under `directory`, replacing one of the same step; on return it is on the disk.

    Args:
        directory: the run's `checkpoints/`; made if it is missing.
        step: the iteration, >= 0.
        tensors: each group becomes `<group>.safetensors`, bit for bit, from contiguous CPU copies.
        state: JSON values; floats come back exactly, tuples as lists.

    Raises:
        CheckpointError: `state` holds what JSON cannot (NaN, inf, an object, a key that is no string), or the disk
            refused. The checkpoints that were there still are.
    """
    require_json(state, "state")
    directory = Path(directory)
    final = directory / f"step-{step:06d}"
    temporary, replaced = directory / f".writing-{final.name}", directory / f".replaced-{final.name}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        _write(temporary, step, tensors, state)
        if final.exists():
            os.replace(final, replaced)
        os.replace(temporary, final)
        _flush(directory)
        _flush(directory.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"Cannot write the checkpoint {final}: {error}. Free space or mend the disk.") from error
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint; CheckpointError names the first file that is missing, short or changed."""
    path = Path(path)
    try:
        names = _verify(path, hashes=True)
        content = json.loads((path / STATE).read_text(encoding="utf-8"))
        tensors = {name.removesuffix(TENSORS): load_file(path / name) for name in names if name.endswith(TENSORS)}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error}.") from error
    return Checkpoint(step=content["step"], tensors=tensors, state=content["state"])


def latest_checkpoint(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies; None where there is none at all, CheckpointError where all are damaged.

    `report` receives one message for each newer checkpoint that had to be passed over.
    """
    refused: list[str] = []
    for path in _newest_first(Path(directory)):
        try:
            checkpoint = load_checkpoint(path)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for reason in refused:
            report(f"{reason} Using step {checkpoint.step} instead.")
        return checkpoint
    if refused:
        raise CheckpointError("\n  - ".join([f"No checkpoint in {directory} can be used:", *refused]))
    return None


def prune_checkpoints(directory: Path, keep: int | None) -> None:
    """Delete what is older than the newest `keep` complete checkpoints; None keeps everything.

    Complete means all files with their right sizes: checksums are not read again at every save. A damaged checkpoint
    that is newer than those kept stays, for `latest_checkpoint` to report.
    """
    if keep is None:
        return
    if keep < 1:
        raise CheckpointError(f"keep must be at least 1, or null to keep every checkpoint. Got keep={keep}.")
    complete = 0
    for path in _newest_first(Path(directory)):
        if complete >= keep:
            discarded = path.with_name(f".discarded-{path.name}")  # it loses its valid name before its first file
            shutil.rmtree(discarded, ignore_errors=True)
            os.replace(path, discarded)
            shutil.rmtree(discarded)
        else:
            complete += _is_whole(path)


def _write(directory: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    directory.mkdir()
    (directory / STATE).write_text(json.dumps({"step": step, "state": state}, indent=1), encoding="utf-8")
    for group, named in tensors.items():
        save_file({name: _plain_copy(tensor) for name, tensor in named.items()}, directory / (group + TENSORS))
        (directory / (group + TENSORS)).chmod(
            (directory / STATE).stat().st_mode
        )  # safetensors lets only the owner read
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(directory.iterdir())}
    (directory / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1), encoding="utf-8")
    for path in [*directory.iterdir(), directory]:
        _flush(path)


def _plain_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _verify(path: Path, hashes: bool) -> list[str]:
    """The names of a checkpoint's files; CheckpointError on the first that is not as the manifest says."""
    damaged = f"The checkpoint {path} is damaged:"
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        version, _ = manifest["format"], files[STATE]
    except FileNotFoundError as error:
        raise CheckpointError(f"{damaged} {MANIFEST} is missing.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{damaged} {MANIFEST} cannot be read.") from error
    if version != FORMAT:
        raise CheckpointError(f"{path / MANIFEST} has format {version!r}; this version of diffrl reads {FORMAT}.")
    for name, (size, sha256) in files.items():
        file = path / name
        if file.parent != path or not file.is_file():
            raise CheckpointError(f"{damaged} {name} is missing.")
        if file.stat().st_size != size:
            raise CheckpointError(f"{damaged} {name} has {file.stat().st_size} bytes, its manifest says {size}.")
        if hashes and _sha256(file) != sha256:
            raise CheckpointError(f"{damaged} {name} has changed since it was written (its sha256 differs).")
    return list(files)


def _is_whole(path: Path) -> bool:
    try:
        return bool(_verify(path, hashes=False))
    except CheckpointError:
        return False


def _newest_first(directory: Path) -> list[Path]:
    """The checkpoints of a directory; a `.replaced-` one stands in where the name itself is missing."""
    found: dict[int, Path] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():  # "." sorts first, so plain names win
        if match := re.fullmatch(r"(?:\.replaced-)?step-(\d{6,})", path.name):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found, reverse=True)]


def _remove_leftovers(directory: Path) -> None:
    for path in list(directory.iterdir()):
        match = re.fullmatch(r"\.(writing|replaced|discarded)-(.*)", path.name)
        if match and match[1] == "replaced" and not (directory / match[2]).exists():
            os.replace(path, directory / match[2])
        elif match:
            shutil.rmtree(path)


def require_json(value: Any, where: str) -> None:
    """Refuse what would not come back from JSON as it went in, and say where it is."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"Keys of a checkpoint's state are strings. Got {key!r} in {where}.")
            require_json(entry, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            require_json(entry, f"{where}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"A checkpoint's state holds finite numbers only. Got {value} at {where}.")
    elif not isinstance(value, (str, int, float, type(None))):
        raise CheckpointError(f"A checkpoint's state holds plain JSON values. Got {type(value).__name__} at {where}.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Force a file, or a directory's names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
