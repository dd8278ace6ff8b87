"""How a run stands, by what lies in its directory, and how it is gone on with.

A process's exit code can be anybody's, if a reward ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diffrl.checkpoint.files import newest_first, step_of
from diffrl.errors import ConfigError
from diffrl.gallery.progress import asked, how_it_ended, is_locked, read_rows
from diffrl.gallery.runs import RunSource
from diffrl.run.directory import LOCK, read_summary, require_run_dir
from diffrl.run.journal import CHECKPOINTS

EXIT_CODES = {"finished": 0, "failed": 3, "running": 4, "interrupted": 5}


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Args:
        state: "finished", "running", "failed" (by an error, or stopped by a guard), or "interrupted": by a signal, a
            crash, a reward that ended the process; or on another machine, whose lock cannot be seen from here.
        line: the same in words, with how to go on.
    """

    state: str
    line: str

    @property
    def exit_code(self) -> int:
        """Return that of `diffrl status`."""
        return EXIT_CODES[self.state]


def status_of(path: Path) -> Status:
    """Read how a run stands; nothing is written.

    Raises:
        ConfigError: there is no run.
    """
    run_dir = require_run_dir(path)
    run = RunSource("run", run_dir, run_dir.name)
    if (total := asked(run)) is None:
        raise ConfigError(
            f"config.yaml of a run says how many iterations it has. {run_dir} has a damaged one. Mend it."
        )
    *_, done, _ = read_rows(run_dir / "metrics.jsonl")

    def words(state: str) -> str:
        return f"{run_dir}: {state}, {done} of {total} iterations."

    if is_locked(run_dir / LOCK):
        return Status("running", words("running"))
    newest = next(iter(newest_first(run_dir / CHECKPOINTS)), None)
    kept = describe_kept(run_dir, None if newest is None else step_of(newest), total)
    if ended := how_it_ended(run):
        return Status("failed", f"{words(ended)} log.txt says why. {kept}")
    summary = read_summary(run_dir)
    if summary.get("iterations") == total:
        if not summary.get("updates_with_gradient"):
            return Status("failed", f"{words('nothing was trained')} log.txt says why.")
        return Status("finished", words("finished"))
    return Status("interrupted", f"{words('interrupted, or crashed')} {kept}")


def describe_kept(run_dir: Path, saved: int | None, iterations: int) -> str:
    """Return what a run that ends now leaves, and how to go on.

    Args:
        run_dir: the run.
        saved: iteration of its newest checkpoint; None without any.
        iterations: of the whole run.
    """
    command = resume_command(run_dir)
    if saved is None:
        return f"There is no checkpoint yet, so training starts again, with: {command}"
    if saved == iterations:
        return f"All {iterations} iterations are trained and kept. For what is written at the end: {command}"
    return f"The newest checkpoint is of iteration {saved}. Go on with: {command}"


def resume_command(run_dir: Path) -> str:
    """Return the command that goes on with a run."""
    return f"diffrl train --resume {run_dir}"
