"""The samples of a training run, from the index that the run keeps of them: samples.sqlite, opened read-only.

Its tables belong to diffrl, of which nothing is imported here; only the columns that scoring needs are read.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from reward_models.common.errors import RewardError
from reward_models.common.reading import Unreadable, require_file
from reward_models.common.stores import describe_failure, open_to_read, require_tables
from reward_models.scoring.items import Item

INDEX, PICTURES = "samples.sqlite", "samples"
SCHEMA_VERSION = 2
NO_PICTURE = "stored without an image"
SMALL = "kept as small images to be looked at"
CHANGED = "kept for how much their score changed"
DAMAGED = "of damaged rows"
ADDRESS = {"stage": str, "iteration": int, "group_id": int, "root": int, "path": str, "seed": int}


def is_run(path: Path) -> bool:
    """Return whether a path is the directory of a run that kept samples, whatever has become of their index."""
    return (path / INDEX).exists()


def samples_of_run(run: Path, stage: str | None, iterations: Sequence[int], skipped: Counter[str]) -> list[Item]:
    """Read the samples that can be measured and stand for all, in the order of iteration, stage, group, root and path.

    A run keeps small copies of some images, and others for how much their score changed: neither counts.

    Args:
        run: its directory; the run may be going on.
        stage: "train", "eval", ...; None: all.
        iterations: only these; empty: all.
        skipped: gets the counts of those that are left out.

    Raises:
        RewardError: an index of another version or a broken one, or nothing of that stage and iteration in it.
    """
    index = run / INDEX
    with _opened(index) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise RewardError(f"{index} has schema {version}, this version reads 2. Use matching versions.")
        require_tables(database)
        where: list[str] = ["1"]
        values: list[Any] = []
        if stage is not None:
            where.append("stage = ?")
            values.append(stage)
        if iterations:
            where.append(f"iteration IN ({', '.join('?' * len(iterations))})")
            values.extend(iterations)
        order = "iteration, stage, group_id, root, path"
        select = f"SELECT {', '.join(ADDRESS)}, prompt, metadata, exact, representative, picture FROM samples"
        rows = database.execute(f"{select} WHERE {' AND '.join(where)} ORDER BY {order}", values).fetchall()
        if not rows:
            there = database.execute(
                "SELECT stage, min(iteration), max(iteration) FROM samples GROUP BY stage"
            ).fetchall()
            known = "; ".join(f"{name}, iterations {low} to {high}" for name, low, high in there) or "nothing"
            raise RewardError(f"{index} holds no samples of that stage and iteration. It has: {known}.")
    items = []
    for *facts, exact, representative, file in rows:
        if file is None:
            skipped[NO_PICTURE] += 1
            continue
        item = _item(run, (*facts, file))
        if item is None or not isinstance(exact, int | None):
            skipped[DAMAGED] += 1
            continue
        if not exact:
            skipped[SMALL] += 1
        elif representative == 0:
            skipped[CHANGED] += 1
        else:
            items.append(item)
    return items


@contextmanager
def _opened(index: Path) -> Iterator[sqlite3.Connection]:
    try:
        require_file(index)  # SQLite would wait for a pipe
        with closing(open_to_read(index)) as database:
            yield database
    except (sqlite3.Error, Unreadable) as error:
        why = describe_failure(error) if isinstance(error, sqlite3.Error) else str(error)
        raise RewardError(f"The sample index {index} cannot be used: {why}. Is it a run's, and whole?") from error


def _item(run: Path, row: tuple[Any, ...]) -> Item | None:
    """Return the sample of a row; None of a damaged one. SQLite keeps what it is given, whatever the column's type."""
    *address, prompt, written, file = row
    try:
        metadata = json.loads(written)
    except (TypeError, ValueError, RecursionError):
        return None
    kinds = (*ADDRESS.values(), str, dict, str)
    values = (*address, prompt, metadata, file)
    if not all(map(isinstance, values, kinds)) or "\0" in file:
        return None
    path = run / file
    if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(run / PICTURES)):
        raise RewardError(f"{run / INDEX} names an image outside its run: {file!r}. Do not trust this run.")
    sample = dict(zip(("stage", "iteration", "group", "root", "path", "seed"), address, strict=True))
    group = (str(run), sample["stage"], sample["iteration"], sample["group"])
    return Item(path, str(path), run, prompt, metadata, sample, group, prompt_from=INDEX)
