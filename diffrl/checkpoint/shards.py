"""A checkpoint that all ranks write, each its own rows: no process ever holds the whole.

    policy.00000-of-00002.safetensors   rank 0's rows of every trained weight
    policy.00001-of-00002.safetensors   rank 1's
    random.safetensors                  a group without split tensors, by rank 0 alone
    state.json, manifest.json           as in any other checkpoint

It is read like any other, on any number of processes, and there by ranks that want all of it or other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from diffrl.checkpoint.files import (
    SHARDED_FORMAT,
    TENSORS,
    Entry,
    abandon,
    begin,
    cannot_write,
    commit,
    require_json,
    step_path,
    write_group,
)
from diffrl.checkpoint.split import part_name
from diffrl.distributed.gathered import is_sharded
from diffrl.distributed.sharding import own_rows
from diffrl.errors import CheckpointError

T = TypeVar("T")
Exchange = Callable[[Any], list[Any]]
"""Gives every rank's value, in rank order, to every rank."""


def save_shards(
    directory: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    rank: int,
    exchange: Exchange,
) -> Path:
    """Write `step-<step>` together; every rank calls this. The guarantees are those of `save_checkpoint`.

    Args:
        directory: the run's `checkpoints/`, the same folder on every rank; made if it is missing.
        step: the iteration, >= 0.
        tensors: by group. Of sharded ones each rank writes its own rows, all others are written by rank 0.
        state: JSON values; rank 0's are written.
        rank: of this process.
        exchange: between the ranks.

    Raises:
        CheckpointError: on every rank, if any of them could not do its part. The checkpoints that were there still are.
    """
    final = step_path(directory, step)
    world = len(exchange(None))  # one value comes back from each rank
    main = rank == 0

    def prepare() -> None:
        if main:
            require_json(state, "state")
            begin(final)

    def write() -> dict[str, Entry]:
        temporary = final.with_name(f".writing-{final.name}")
        named = own_groups(tensors, rank, world)
        return dict(write_group(temporary / (name + TENSORS), group) for name, group in named.items())

    def finish() -> None:
        if main:
            commit(final, SHARDED_FORMAT, state, {name: entry for entries in files for name, entry in entries.items()})

    # Three rounds, each ended by an exchange: no rank writes before the folder is there, and the folder gets its name
    # only once every rank's files are on the disk. What fails on one rank travels with the exchange, so that the others
    # raise too and none waits for ever.
    try:
        _together(final, exchange, prepare)
        files = _together(final, exchange, write)
        _together(final, exchange, finish)
    except CheckpointError:
        if main:
            abandon(final)
        raise
    return final


def own_groups(tensors: Mapping[str, Mapping[str, Tensor]], rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    """Return what a rank writes, by the name of the file without its ending."""
    groups: dict[str, dict[str, Tensor]] = {}
    for group, named in tensors.items():
        sharded = any(is_sharded(tensor) for tensor in named.values())
        if sharded or rank == 0:  # whole tensors are equal on all ranks: one copy is enough
            groups[part_name(group, rank, world) if sharded else group] = {
                name: own_rows(tensor)[0] for name, tensor in named.items() if rank == 0 or is_sharded(tensor)
            }
    return groups


def _together(final: Path, exchange: Exchange, work: Callable[[], T]) -> list[T]:
    """Let every rank do its part, and none go on where one has failed."""
    result: T | None = None
    problem = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001  whatever it is, the others must not wait for this rank
        problem = str(error) or type(error).__name__
    outcomes = exchange((result, problem))
    failed = [f"rank {rank}: {problem}" for rank, (_, problem) in enumerate(outcomes) if problem is not None]
    if failed:
        raise cannot_write(final, "; ".join(failed[:3]))
    return [result for result, _ in outcomes]
