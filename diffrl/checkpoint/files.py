"""Durable checkpoints: `checkpoints/step-000040/` holds safetensors, JSON and a manifest of checksums; no pickle.

A directory is written beside its name, flushed to disk and only then renamed, so a kill at any moment leaves either the
whole checkpoint or none. One process names it, any number may read. Names that begin with a dot are work in progress:

    .writing-step-000040     an unfinished save; the next save removes it
    .replaced-step-000040    moved aside by a second save of the same step; stands in for it until that save is in place
    .discarded-step-000040   being deleted; the next save finishes that

Weights that are split over ranks are written by all of them, each its own rows: see `shards.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffrl.checkpoint.split import PART, SplitTensors
from diffrl.errors import CheckpointError
from diffrl.files import discard, flush, follow_umask, read_own

Entry = Mapping[str, int | str]
"""What the manifest says of a file: its size in bytes and its sha256."""
FORMAT, SHARDED_FORMAT = 1, 2
"""The manifest's number: each group of tensors in one file; some groups in one file a rank."""
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"
NAME = re.compile(r"(?:\.replaced-)?step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the step, named CPU tensors by group ("policy", "optimizer", ...), and JSON values.

    What was written by several ranks is read from the disk when it is looked up, whole or in part.
    """

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
    final = step_path(directory, step)
    try:
        temporary = begin(final)
        files = [write_group(temporary / (group + TENSORS), named) for group, named in tensors.items()]
        commit(final, FORMAT, state, dict(files))
    except (OSError, SafetensorError) as error:
        abandon(final)
        raise cannot_write(final, error) from error
    return final


def step_path(directory: Path, step: int) -> Path:
    """Return the path of a step's checkpoint once it is complete."""
    return Path(directory) / f"step-{step:06d}"


def begin(final: Path) -> Path:
    """Make the folder that a checkpoint's files are written to, and remove what earlier saves left unfinished."""
    temporary = _temporary(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(final.parent)
    temporary.mkdir()
    return temporary


def write_group(path: Path, tensors: Mapping[str, Tensor]) -> tuple[str, Entry]:
    """Write tensors into one safetensors file, onto the disk; its name and what the manifest says of it."""
    save_file({name: _plain_copy(tensor) for name, tensor in tensors.items()}, path)
    follow_umask(path)
    flush(path)
    return path.name, _entry(path)


def commit(final: Path, version: int, state: Mapping[str, Any], files: Mapping[str, Entry]) -> None:
    """Write state and manifest beside the files that are there, and give the whole its name.

    Args:
        final: as `step_path` gives it; its files are in the folder that `begin` made.
        version: of the format.
        state: JSON values.
        files: from `write_group`, of all ranks.
    """
    temporary, replaced = _temporary(final), final.with_name(f".replaced-{final.name}")
    content = {"step": int(final.name.removeprefix("step-")), "state": state}
    (temporary / STATE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    entries = {**files, STATE: _entry(temporary / STATE)}
    manifest = {"format": version, "files": dict(sorted(entries.items()))}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in (temporary / STATE, temporary / MANIFEST, temporary):
        flush(path)
    if final.exists():
        os.replace(final, replaced)
    os.replace(temporary, final)
    flush(final.parent)
    flush(final.parent.parent)
    with suppress(OSError):  # the next save removes it
        discard(replaced)


def abandon(final: Path) -> None:
    """Remove what was written of a checkpoint that could not be completed."""
    with suppress(OSError):  # the disk may be what failed; the next save removes it
        discard(_temporary(final))


def cannot_write(final: Path, reason: object) -> CheckpointError:
    """Return the error of a checkpoint that could not be written."""
    return CheckpointError(f"Cannot write the checkpoint {final}: {reason}. Free space or mend the disk.")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint; CheckpointError names the first file that is missing, short or changed."""
    path = Path(path)
    try:
        names = _verify(path, hashes=True)
        step, state = _contents(path)
        tensors = _read_groups([path / name for name in names if name.endswith(TENSORS)])
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"Cannot read the checkpoint {path}: {error}.") from error
    return Checkpoint(step=step, tensors=tensors, state=state)


def _contents(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the step and the JSON values of a checkpoint."""
    content = json.loads(read_own(path / STATE))
    step, state = (content.get(name) if isinstance(content, dict) else None for name in ("step", "state"))
    if type(step) is not int or not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint {path} is damaged: {STATE} must hold a step and a state.")
    named = NAME.fullmatch(path.name)
    if named and int(named[1]) != step:
        raise CheckpointError(f"The checkpoint {path} is of step {step}, as its {STATE} says, and not of that name.")
    return step, state


def latest_checkpoint(
    directory: Path,
    report: Callable[[str], None],
    check: Callable[[Checkpoint], None] = lambda checkpoint: None,
    wanted: Collection[int] | None = None,
) -> Checkpoint | None:
    """Return the newest checkpoint that verifies; None where there is none, CheckpointError where all are damaged.

    Args:
        directory: the run's `checkpoints/`.
        report: receives one message for each newer checkpoint that had to be passed over.
        check: raises CheckpointError for one that is whole and yet of no use.
        wanted: steps to choose from; None = all.
    """
    refused: list[str] = []
    for path in (one for one in newest_first(Path(directory)) if wanted is None or step_of(one) in wanted):
        try:
            checkpoint = load_checkpoint(path)
            try:
                check(checkpoint)
            except CheckpointError as error:
                raise CheckpointError(f"The checkpoint {path} cannot be used: {error}") from error
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for reason in refused:
            report(f"{reason} Using step {checkpoint.step} instead.")
        return checkpoint
    if refused:
        message = "\n  - ".join([f"No checkpoint in {directory} can be used:", *refused])
        raise CheckpointError(
            f"{message}\nPut them back from a copy, or begin anew: diffrl train --resume RUN --from-start."
        )
    return None


def prune_checkpoints(directory: Path, keep: int | None, spared: Collection[int] = ()) -> None:
    """Delete what is older than the newest `keep` complete checkpoints, but for some steps; None keeps everything.

    Complete means all files with their right sizes: checksums are not read again at every save. A damaged checkpoint
    that is newer than those kept stays, for `latest_checkpoint` to report.
    """
    if keep is None:
        return
    if keep < 1:
        raise CheckpointError(f"keep must be at least 1, or null to keep every checkpoint. Got keep={keep}.")
    complete = 0
    for path in newest_first(Path(directory)):
        if complete >= keep and step_of(path) in spared:
            continue
        if complete >= keep:
            discarded = path.with_name(f".discarded-{path.name}")  # it loses its valid name before its first file
            discard(discarded)
            os.replace(path, discarded)
            discard(discarded)
        else:
            complete += _is_whole(path)


def _read_groups(paths: Sequence[Path]) -> dict[str, Mapping[str, Tensor]]:
    """Return each group's tensors; what one file holds is read now."""
    groups: dict[str, Mapping[str, Tensor]] = {}
    parts: dict[str, list[Path]] = {}
    for path in sorted(paths):
        name = path.name.removesuffix(TENSORS)
        if match := PART.fullmatch(name):
            parts.setdefault(match[1], []).append(path)
        else:
            groups[name] = load_file(path)
    return groups | {group: SplitTensors(files) for group, files in parts.items()}


def _temporary(final: Path) -> Path:
    return final.with_name(f".writing-{final.name}")


def _entry(path: Path) -> Entry:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _plain_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _verify(path: Path, hashes: bool) -> list[str]:
    """Return the names of a checkpoint's files; CheckpointError on the first that is not as the manifest says."""
    damaged = f"The checkpoint {path} is damaged:"
    try:
        if (path / MANIFEST).exists() and not (path / MANIFEST).is_file():
            raise ValueError("no file")
        manifest = json.loads(read_own(path / MANIFEST))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        version, _ = manifest["format"], files[STATE]
    except FileNotFoundError as error:
        raise CheckpointError(f"{damaged} {MANIFEST} is missing.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{damaged} {MANIFEST} cannot be read.") from error
    if version not in (FORMAT, SHARDED_FORMAT):
        readable = f"{FORMAT} and {SHARDED_FORMAT}"
        raise CheckpointError(f"{path / MANIFEST} has format {version!r}; this version of diffrl reads {readable}.")
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


def checkpoint_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, the newest first, whole or damaged."""
    return [step_of(path) for path in newest_first(Path(directory))]


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's name says."""
    match = NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory; a `.replaced-` one stands in where the name itself is missing."""
    paths: dict[int, Path] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():  # "." sorts first, so plain names win
        if NAME.fullmatch(path.name) and path.is_dir():
            paths[step_of(path)] = path
    return [paths[step] for step in sorted(paths, reverse=True)]


def remove_leftovers(directory: Path) -> None:
    """Delete what saves of a run's `checkpoints/` left unfinished; what was moved aside gets its name back."""
    for path in list(directory.iterdir()):
        match = re.fullmatch(r"\.(writing|replaced|discarded)-(.*)", path.name)
        if match and match[1] == "replaced" and path.is_dir() and not (directory / match[2]).exists():
            os.replace(path, directory / match[2])
        elif match:
            discard(path)


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
