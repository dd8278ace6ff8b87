"""Where a run's files lie: in its own directory. A link out of it would show whoever reads the run what is not its."""

from __future__ import annotations

from pathlib import Path

from diffrl.errors import ConfigError, DiffrlError


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


def require_run_dir(path: str | Path) -> Path:
    """Return a run's directory.

    Raises:
        ConfigError: there is no run.
    """
    directory = Path(path)
    if not (directory / "config.yaml").is_file():
        raise ConfigError(
            f"A run is a directory with a config.yaml that `diffrl train` made. Got {str(path)!r}{_instead(directory)}."
        )
    return directory


def _instead(directory: Path) -> str:
    """Return what is there in place of a run, to go on after its name."""
    try:
        if not directory.is_dir():
            return ", which is a file" if directory.exists() else ", which is not there. Check the path"
        runs = sorted(str(entry) for entry in directory.iterdir() if (entry / "config.yaml").is_file())
    except OSError as error:
        return f", which cannot be read: {error.strerror}"
    if (directory / "model_index.json").is_file():
        return f", which is a pipeline. Name it with --model {directory}"
    if not runs:
        return ", which has none. Name a run's own folder, such as runs/NAME"
    more = ", ..." if len(runs) > 5 else ""
    return f", a folder of runs. Name one of them: {', '.join(runs[:5])}{more}"
