"""A comparison's numbers in one text file: what to keep of it where its runs, with all their weights, cannot be kept.

The first line is state.json, every other one a finished run: its summary, its held-out evaluations with what was spent
until each, and its measurements on the report split. Unpacked it is a comparison's directory again, which can be
reported, priced anew, and gone on with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffrl.config import dump_config
from diffrl.errors import ConfigError
from diffrl.files import read_own, write_text
from diffrl.studies.compare.pairing import report_source
from diffrl.studies.compare.plan import Record
from diffrl.studies.compare.reported import EVALUATIONS, Reported, read_rows
from diffrl.studies.compare.stored import (
    Count,
    Folder,
    Metrics,
    Stored,
    Summary,
    parse_stored,
    read_rows_of,
    read_stored,
)
from reward_models.common.messages import quote

SPENT = ("evaluations/", "seconds/")
"""Columns of metrics.jsonl that are an iteration's own, and are added up between two evaluations."""

HELD_OUT = "held_out/"
DIGITS = 6


class ArchivedRun(Stored):
    """A line of an archive: a finished run."""

    folder: Folder
    seed: Count
    summary: Summary
    rows: list[Metrics]
    evaluations: list[Reported]


def pack(directory: Path, archive: Path) -> int:
    """Replace a file by JSON lines of the finished runs of a comparison that are measured on the report split.

    Returns:
        How many runs it holds.

    Raises:
        ConfigError: there is no comparison.
    """
    record = Record.read(directory)
    lines = [record.model_dump_json(exclude_unset=True)]
    for number in range(record.seeds):
        for planned in record.configurations:
            path = directory / planned.folder / f"seed-{number}"
            measured = report_source(planned.settings) is None or (path / EVALUATIONS).is_file()
            if (path / "summary.json").is_file() and measured:  # without weights it could not be measured later
                lines.append(_run(path, planned.folder, number).model_dump_json(exclude_unset=True))
    write_text(archive, "".join(f"{line}\n" for line in lines))
    return len(lines) - 1


def unpack(archive: Path, directory: Path) -> None:
    """Make a comparison's directory of an archive, with which `diffrl compare` goes on; its runs have no weights.

    Raises:
        DiffrlError: the directory is there already, or the file is damaged.
    """
    if directory.exists():
        raise ConfigError(f"An archive is unpacked into a new directory. Got {directory}. Choose another.")
    try:
        first, *others = read_own(archive).splitlines() or [b""]
    except OSError as error:
        raise ConfigError(f"{archive} is damaged: {error}. Take an older version of it.") from error
    record = parse_stored(Record, first, f"{archive}, its plan,")
    runs = [parse_stored(ArchivedRun, line, f"{archive}, run {i}") for i, line in enumerate(others, start=1)]
    planned = {one.folder: one for one in record.configurations}
    if unplanned := {run.folder for run in runs} - set(planned):
        raise ConfigError(f"{archive} is damaged: it plans no runs of {quote(min(unplanned))}. Restore it.")
    for one in record.configurations:
        one.resolve(archive)  # refuses before the directory is there
    directory.mkdir(parents=True)
    record.save(directory)
    for run in runs:
        path = directory / run.folder / f"seed-{run.seed}"
        path.mkdir(parents=True, exist_ok=True)  # an archive may hold a run twice: the later one counts
        write_text(path / "config.yaml", dump_config(planned[run.folder].of_seed(run.seed, directory)))
        for name, rows in (("metrics.jsonl", run.rows), (EVALUATIONS, run.evaluations)):
            write_text(path / name, "".join(row.model_dump_json(exclude_unset=True) + "\n" for row in rows))
        write_text(path / "summary.json", run.summary.model_dump_json())


def _run(path: Path, folder: str, seed: int) -> ArchivedRun:
    summary = read_stored(path / "summary.json", Summary)
    reported = read_rows(path / EVALUATIONS) if (path / EVALUATIONS).is_file() else []
    return ArchivedRun(
        folder=folder,
        seed=seed,
        summary=Summary(**{name: getattr(summary, name) for name in Summary.model_fields}),
        rows=[Metrics(**row) for row in _rows(read_rows_of(path))],
        evaluations=[row.model_copy(update={"means": _rewards(row.means), "intervals": None}) for row in reported],
    )


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with a held-out evaluation, with what all rows since the one before have spent."""
    kept, spent = [], dict[str, float]()
    for row in rows:
        for name, value in row.items():
            if name.startswith(SPENT):
                spent[name] = spent.get(name, 0) + (value or 0)
        if any(name.startswith(HELD_OUT) for name in row):
            costs = {name: value for name, value in row.items() if name.startswith("cost/")}
            held = {name: value for name, value in row.items() if name.startswith(HELD_OUT) and name.count("/") == 1}
            kept.append({"iteration": row["iteration"], **_short({**held, **costs, **spent})})
            spent = {}
    return kept


def _rewards(means: Mapping[str, float]) -> dict[str, float | None]:
    """Return without the parts of rewards."""
    return _short({name: value for name, value in means.items() if "/" not in name})


def _short(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in values.items()}
