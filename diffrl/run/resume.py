"""Where a run goes on: the newest checkpoint that fits it, and what its records lack.

checkpoints.json    the iteration of the newest checkpoint, so that one that is gone is missed
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diffrl.checkpoint.files import Checkpoint, latest_checkpoint
from diffrl.checkpoint.state import require_optimizer, require_rng
from diffrl.config import Config
from diffrl.errors import CheckpointError, DiffrlError
from diffrl.files import read_own
from diffrl.run.changes import compare_configs, require_left
from diffrl.run.directory import REPORT, read_summary
from diffrl.run.journal import CHECKPOINTS, NEWEST, random_group
from diffrl.run.status import resume_command
from diffrl.tracking.index import IMAGES, INDEX
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.rewards import REWARDS
from diffrl.tracking.store import SampleStore
from diffrl.training.policy import require_weights
from diffrl.training.session import Session
from diffrl.trees.read import NAME as TREE
from diffrl.trees.record import TREES

Count = Annotated[int, Field(ge=0)]

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Number = Annotated[float, Field(allow_inf_nan=False)]


def find_checkpoint(
    run_dir: Path, config: Config, check: Callable[[Checkpoint], None], report: Callable[[str], None]
) -> Checkpoint | None:
    """Return the checkpoint that a run goes on from; None if it ended before its first.

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
            f"back, or begin anew with: {resume_command(run_dir)} --from-start, which sets aside all that there is."
        )
    return None


def newest_known(run_dir: Path) -> int | None:
    """Return the iteration of the newest checkpoint that the run has written, wherever that is now."""
    try:
        newest = json.loads(read_own(run_dir / NEWEST))["iteration"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return newest if type(newest) is int else None


def trained_iterations(run_dir: Path) -> int:
    """Return how many iterations the run's own records tell of."""
    folders = [*numbered_entries(run_dir / IMAGES, "train-"), *numbered_entries(run_dir / TREES, "")]
    return max([0, *(row["iteration"] for row in _rows(run_dir)), *(number + 1 for number, _ in folders)])


def lost_history(run_dir: Path, step: int) -> list[str]:
    """Return what the run's records lack of the iterations before a checkpoint, one message each.

    Raises:
        DiffrlError: a record is damaged; says how to go on without it.
    """
    try:
        rows, index = _rows(run_dir), run_dir / INDEX
        sampled, pictures = set[int](), list[str]()
        if index.exists() and index.stat().st_size > 0:
            with SampleStore.open_readonly(run_dir) as store:
                store.require_whole()
                sampled, pictures = store.iterations("train"), store.lost_pictures(step)
    except DiffrlError as error:
        raise DiffrlError(f"{error} Or move that file away, and the run goes on without what it tells.") from error
    lost = [
        ("metrics.jsonl", sorted(set(range(step + 1)) - {row["iteration"] for row in rows})),
        (INDEX, sorted(set(range(step)) - sampled)),
    ]
    gone = [f"{IMAGES}/ has lost {len(pictures)} images that {INDEX} names, such as {pictures[0]}."] if pictures else []
    return gone + [
        f"{name} has lost {len(missing)} iterations, from {missing[0]} to {missing[-1]}: it was emptied, removed or "
        "edited. Training goes on exactly as it would have; curves, summary and pages show what is left."
        for name, missing in lost
        if missing
    ]


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the run's rows of metrics, none if the file is gone; DiffrlError where one is of no run."""
    path = run_dir / "metrics.jsonl"
    rows = read_metrics(path) if path.exists() else []
    for number, row in enumerate(rows, start=1):
        plain = all(value is None or isinstance(value, (int, float)) for value in row.values())
        if type(row.get("iteration")) is not int or not plain:
            raise DiffrlError(f"{path}, line {number} is no row of a run's metrics. Mend or remove that line.")
    return rows


def numbered_entries(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """Return entries of a folder that are named after an iteration: of samples by their stage, of trees without."""
    entries = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if prefix and path.name.startswith(prefix) and path.name.removeprefix(prefix).isdecimal():
            entries.append((int(path.name.removeprefix(prefix)), path))
        elif not prefix and (match := TREE.fullmatch(path.name)):
            entries.append((int(match[1]), path))
    return entries


def is_complete(run_dir: Path, config: Config) -> bool:
    """Return whether all is trained and written, and resuming would change nothing; what is damaged is not complete."""
    summary = read_summary(run_dir)
    if summary.get("iterations") != config.run.iterations or not summary.get("updates_with_gradient"):
        return False
    if not all((run_dir / name).is_file() for name in (REWARDS, "environment.json", REPORT)):
        return False
    problems: list[str] = []
    try:
        newest = latest_checkpoint(run_dir / CHECKPOINTS, problems.append)
        if newest is None or newest.step != config.run.iterations or newest_known(run_dir) != newest.step:
            return False
        changed = compare_configs(newest.state.get("config"), config, str(run_dir / "config.yaml"))
        return not problems and changed is None and not lost_history(run_dir, newest.step)
    except (DiffrlError, OSError):
        return False


def describe_complete(run_dir: Path, iterations: int) -> str:
    """Return what to tell of a run that is complete."""
    return (
        f"{run_dir} is finished: all {iterations} iterations are trained and everything is written. To train it "
        f"further:\n  {resume_command(run_dir)} run.iterations={2 * iterations}"
    )


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Fidelity(_Strict):
    low: Count
    keep: Count
    fallen_back: bool
    synced: bool = False  # older checkpoints have none


class _Sentinel(_Strict):
    sums: dict[str, Number]
    counts: dict[str, Annotated[int, Field(ge=1)]]
    first: dict[str, Number]
    best: dict[str, dict[str, Any]]
    alarmed: Count


class _Learning(_Strict):
    updates: Count
    idle: Count


class _State(_Strict):
    """What `Trainer.restore` and its caller read; what else there is, is left alone."""

    iteration: Count
    updates: Count
    counts: dict[str, Amount]
    peak_memory_bytes: Count
    seconds: dict[str, Amount]
    flat_iterations: Count
    on_policy_error: Amount | None
    fidelity: _Fidelity
    sentinel: _Sentinel
    optimizer: dict[str, Any]
    learning: _Learning | None = None  # older checkpoints have none


def averages_of(config: Config) -> list[str]:
    """Return the averaged weights that a run keeps beside its policy, by their names in a checkpoint."""
    kept = {
        "ema": config.train.ema is not None,
        "old": config.objective.old_policy_is_ema,
        "drawing": config.keeps_drawing_weights,
    }
    return [name for name, asked in kept.items() if asked]


def require_fit(session: Session, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is whole and yet not what `restore` needs.

    Raises:
        CheckpointError: what is missing, or of another kind.
    """
    state, tensors = checkpoint.state, checkpoint.tensors
    require_state(state)
    if state["iteration"] != checkpoint.step:
        raise CheckpointError(f"Its state is of iteration {state['iteration']}, its name says {checkpoint.step}.")
    averages = averages_of(session.config)
    for name in {"ema", "old", "drawing"} & (tensors.keys() ^ set(averages)):
        raise CheckpointError(
            f"The checkpoint and the configuration disagree on the averaged weights {name!r}. Resume with the run's "
            "own configuration."
        )
    for name in ("policy", *averages):
        require_weights(session.policy.parameters, _group(tensors, name))
    require_optimizer(session.optimizer, _group(tensors, "optimizer"), state["optimizer"])
    group = random_group(session.ranks.rank)
    if (group in tensors) != (group in state):
        raise CheckpointError(f"Of the generators {group!r}, the tensors or the values are missing.")
    if group in tensors:  # a rank that was not there goes on as it was seeded
        require_rng(tensors[group], state[group])


def require_state(state: Mapping[str, Any]) -> None:
    """Refuse a trainer's state that lacks a value, or has one of another type.

    Raises:
        CheckpointError: names the first.
    """
    try:
        _State.model_validate(dict(state))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"Its state cannot be used at {where!r}: {first['msg']}.") from error


def _group(tensors: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    if name not in tensors:
        raise CheckpointError(f"It lacks the tensors of {name!r}.")
    return tensors[name]
