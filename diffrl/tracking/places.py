"""Where a run's files lie: in its own directory. A link out of it would show whoever reads the run what is not its."""

from __future__ import annotations

from pathlib import Path

from diffrl.errors import DiffrlError


def place(run_dir: Path, name: str) -> Path:
    """Return a file or a folder of a run, whether or not it is there.

    Args:
        run_dir: the run; it may itself be a link, which its user named.
        name: relative to it.

    Raises:
        DiffrlError: it leads out of the run's directory once every link was followed.
    """
    path = run_dir / name
    try:
        if path.resolve().is_relative_to(run_dir.resolve()):
            return path
    except (OSError, RuntimeError) as error:  # a loop of links
        raise DiffrlError(f"{path} cannot be read: {error}.") from error
    raise DiffrlError(
        f"What is read of a run lies in its own directory. {path} is a link out of it. Put it there itself, or the "
        "whole run behind a link."
    )
