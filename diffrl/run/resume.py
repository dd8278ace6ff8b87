"""Where a run goes on, and what its directory lacks for that. Resuming deletes nothing that cannot be made again.

checkpoints.json    the iteration of the newest checkpoint, so that one that is gone is missed
before-1/           what lay in the run when it went back further than its newest checkpoint, went on otherwise from
                    there, or began anew
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from diffrl.checkpoint.files import Checkpoint, latest_checkpoint, newest_first, remove_leftovers, step_of
from diffrl.config import Config
from diffrl.errors import CheckpointError, ConfigError, DiffrlError
from diffrl.files import read_own, write_json
from diffrl.run.directory import LOCK
from diffrl.run.ending import again
from diffrl.run.journal import CHECKPOINTS, NEWEST
from diffrl.run.kept_config import compare_configs
from diffrl.tracking.index import INDEX, PICTURES
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.rewards import REWARDS
from diffrl.tracking.store import SampleStore
from diffrl.trees.read import NAME as TREE
from diffrl.trees.record import TREES

BEFORE = "before-"
STAYS = ("config.yaml", "environment.json", REWARDS, "log.txt")
"""What a run that begins anew keeps in its place, and what was set aside gets a copy of."""


def find_checkpoint(
    run_dir: Path, config: Config, check: Callable[[Checkpoint], None], report: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint that a run goes on from; None if it ended before its first.

    Args:
        run_dir: the run.
        config: as its config.yaml says now.
        check: raises CheckpointError for a checkpoint that cannot be used.
        report: receives what the user should know.

    Raises:
        CheckpointError: none can be used, or all are gone.
        ConfigError: config.yaml no longer says what the checkpoint was trained with, or asks for fewer iterations.
    """

    def fits(checkpoint: Checkpoint) -> None:
        changes.append(compare_configs(checkpoint.state.get("config"), config, str(run_dir / "config.yaml")))
        check(checkpoint)

    changes: list[str | None] = []
    checkpoint = latest_checkpoint(run_dir / CHECKPOINTS, report, fits)
    if checkpoint is not None:
        require_left(config, run_dir, checkpoint.step)
        if changes[-1]:
            report(changes[-1])
        return checkpoint
    known, reached = newest_known(run_dir), trained_iterations(run_dir)
    if known is not None or reached > config.run.checkpoint_every:
        had = f"had one of iteration {known}" if known is not None else f"trained {reached} iterations"
        raise CheckpointError(
            f"The checkpoints of {run_dir} are gone: it {had}, and {run_dir / CHECKPOINTS} holds none now. Put them "
            f"back, or begin anew with: {again(run_dir)} --from-start, which sets aside all that there is."
        )
    return None


def require_left(config: Config, run_dir: Path, least: int) -> None:
    """Refuse to go on to an iteration that was passed already.

    Args:
        config: with the number that is asked for.
        run_dir: the run.
        least: the lowest number that can be had.

    Raises:
        ConfigError: it is lower.
    """
    if config.run.iterations < least:
        raise ConfigError(
            f"run.iterations must be at least {least}, after what {run_dir} has trained already. Got "
            f"{config.run.iterations}. Raise it."
        )


def newest_known(run_dir: Path) -> int | None:
    """The iteration of the newest checkpoint that the run has written, wherever that is now."""
    try:
        newest = json.loads(read_own(run_dir / NEWEST))["iteration"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return newest if type(newest) is int else None


def trained_iterations(run_dir: Path) -> int:
    """How many iterations the run's own records tell of."""
    folders = [*_numbered(run_dir / PICTURES, "train-"), *_numbered(run_dir / TREES, "")]
    return max([0, *(row["iteration"] for row in _rows(run_dir)), *(number + 1 for number, _ in folders)])


def lost_history(run_dir: Path, step: int) -> list[str]:
    """What the run's records lack of the iterations before a checkpoint, one message each.

    Raises:
        DiffrlError: a record is damaged; says how to go on without it.
    """
    try:
        rows, index = _rows(run_dir), run_dir / INDEX
        drawn, pictures = set[int](), list[str]()
        if index.exists() and index.stat().st_size > 0:
            with SampleStore.open_readonly(run_dir) as store:
                store.require_whole()
                drawn, pictures = store.iterations("train"), store.lost_pictures(step)
    except DiffrlError as error:
        raise DiffrlError(f"{error} Or move that file away, and the run goes on without what it tells.") from error
    lost = [
        ("metrics.jsonl", sorted(set(range(step + 1)) - {row["iteration"] for row in rows})),
        (INDEX, sorted(set(range(step)) - drawn)),
    ]
    gone = (
        [f"{PICTURES}/ has lost {len(pictures)} images that {INDEX} names, such as {pictures[0]}."] if pictures else []
    )
    return gone + [
        f"{name} has lost {len(missing)} iterations, from {missing[0]} to {missing[-1]}: it was emptied, removed or "
        "edited. Training goes on exactly as it would have; curves, summary and pages show what is left."
        for name, missing in lost
        if missing
    ]


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    """The run's rows of metrics, none if the file is gone; DiffrlError where one is of no run."""
    path = run_dir / "metrics.jsonl"
    rows = read_metrics(path) if path.exists() else []
    for number, row in enumerate(rows, start=1):
        plain = all(value is None or isinstance(value, (int, float)) for value in row.values())
        if type(row.get("iteration")) is not int or not plain:
            raise DiffrlError(f"{path}, line {number} is no row of a run's metrics. Mend or remove that line.")
    return rows


def make_room(run_dir: Path, checkpoint: Checkpoint | None, otherwise: bool = False) -> list[str]:
    """Set aside what resuming would otherwise overwrite and could not make again; what was done, one message each.

    What a kill leaves after the newest checkpoint is computed again bit for bit, and so stays to be rewritten. What
    belongs to checkpoints that are damaged or gone is set aside, and so is all that was trained without any.

    Args:
        run_dir: the run, locked.
        checkpoint: that it goes on from; None = it begins again.
        otherwise: whether it goes on in another way than before, so that what came after would not come out the same.
    """
    if checkpoint is None:
        return set_aside(run_dir) if trained_iterations(run_dir) else []
    passed = any(step_of(path) > checkpoint.step for path in newest_first(run_dir / CHECKPOINTS))
    passed |= (newest_known(run_dir) or 0) > checkpoint.step
    passed |= otherwise and trained_iterations(run_dir) > checkpoint.step
    return set_aside(run_dir, checkpoint.step) if passed else []


def set_aside(run_dir: Path, step: int | None = None) -> list[str]:
    """Move what a run holds into a folder of its own.

    Args:
        run_dir: the run, locked.
        step: only what lies beyond this iteration, with copies of the records; None = everything.

    Returns:
        What was done.

    Raises:
        DiffrlError: the disk refused; what was not moved is where it was.
    """
    folder = next_folder(run_dir)
    copied = STAYS if step is None else ("metrics.jsonl", INDEX, f"{INDEX}-wal", "log.txt")
    making = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        for name in copied:
            if (run_dir / name).is_file():
                shutil.copy2(run_dir / name, making / name)
        os.replace(making, folder)
        if (run_dir / CHECKPOINTS).is_dir():
            remove_leftovers(run_dir / CHECKPOINTS)  # or half a checkpoint would lie there for good
        if step is None:
            _move_all(run_dir, folder)
            return [f"All that lay in {run_dir} is in {folder} now, a run of its own. Training begins anew."]
        _move_beyond(run_dir, folder, step)
        write_json(run_dir / NEWEST, {"iteration": step})
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        raise DiffrlError(f"What is in {run_dir} cannot be set aside in {folder}: {error}. Free space.") from error
    return [f"What the run had beyond iteration {step} is kept in {folder}."]


def next_folder(run_dir: Path) -> Path:
    """The first of before-1, before-2, ... that is free."""
    return next(run_dir / f"{BEFORE}{n}" for n in count(1) if not os.path.lexists(run_dir / f"{BEFORE}{n}"))


def _move_all(run_dir: Path, folder: Path) -> None:
    """Move everything; what tells that there were checkpoints last, so that a kill in between is no fresh start."""
    stay = {*STAYS, LOCK}
    names = [p.name for p in run_dir.iterdir() if p.name not in stay and not p.name.startswith(BEFORE)]
    for name in sorted(names, key=lambda name: name == NEWEST):
        os.replace(run_dir / name, folder / name)


def _move_beyond(run_dir: Path, folder: Path, step: int) -> None:
    """Move checkpoints after an iteration, and the pictures and trees of what led beyond it."""
    checkpoints = [path for path in newest_first(run_dir / CHECKPOINTS) if step_of(path) > step]
    pictures = [p for n, p in _numbered(run_dir / PICTURES, "train-") if n >= step]
    pictures += [p for n, p in _numbered(run_dir / PICTURES, "eval-") if n > step]
    trees = [path for number, path in _numbered(run_dir / TREES, "") if number >= step]
    for path in (*pictures, *trees, *checkpoints):
        target = folder / path.parent.name / path.name
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)


def _numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """Entries of a folder that are named after an iteration: of samples by their stage, of trees without."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if prefix and path.name.startswith(prefix) and path.name.removeprefix(prefix).isdecimal():
            found.append((int(path.name.removeprefix(prefix)), path))
        elif not prefix and (match := TREE.fullmatch(path.name)):
            found.append((int(match[1]), path))
    return found
