"""What resuming sets aside: it deletes nothing that cannot be made again.

before-1/           what lay in the run when it went back further than its newest checkpoint, went on otherwise from
                    there, or began anew
"""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

from diffrl.checkpoint.files import Checkpoint, newest_first, remove_leftovers, step_of
from diffrl.errors import DiffrlError
from diffrl.files import write_json
from diffrl.run.directory import LOCK, REPORT, SUMMARY, read_summary
from diffrl.run.journal import CHECKPOINTS, NEWEST
from diffrl.run.resume import newest_known, numbered_entries, trained_iterations
from diffrl.tracking.index import IMAGES, INDEX
from diffrl.tracking.rewards import REWARDS
from diffrl.trees.record import TREES

BEFORE = "before-"

STAYS = ("config.yaml", "environment.json", REWARDS, "log.txt")
"""What a run that begins anew keeps in its place, and what was set aside gets a copy of."""

ENDING = ("before_after.png", "curve.png", REPORT, SUMMARY)
"""What tells of a run's end. The summary, by which one knows that there was one, is moved last."""


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
    """Return the first of before-1, before-2, ... that is free."""
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
    pictures = [p for n, p in numbered_entries(run_dir / IMAGES, "train-") if n >= step]
    pictures += [p for n, p in numbered_entries(run_dir / IMAGES, "eval-") if n > step]
    trees = [path for number, path in numbered_entries(run_dir / TREES, "") if number >= step]
    for path in (*pictures, *trees, *checkpoints):
        target = folder / path.parent.name / path.name
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)


def set_ending_aside(run_dir: Path, iterations: int) -> list[str]:
    """Move what tells of an end that is none any more into a folder of its own; what was done, in a message.

    Raises:
        DiffrlError: the disk refused; what was not moved is where it was.
    """
    ended = read_summary(run_dir).get("iterations")
    if type(ended) is not int or ended >= iterations:
        return []
    folder = next_folder(run_dir)
    moved = [name for name in ENDING if (run_dir / name).is_file()]
    try:
        folder.mkdir()
        for name in moved:
            os.replace(run_dir / name, folder / name)
    except OSError as error:
        raise DiffrlError(f"What tells of the run's end cannot be moved to {folder}: {error}. Free space.") from error
    return [f"What told of the end after iteration {ended} is kept in {folder}: {', '.join(moved)}."]
