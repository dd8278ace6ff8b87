"""A comparison's numbers in one text file: what to keep of it where its runs, with all their weights, cannot be kept.

The first line is state.json, every other one a finished run: its summary, its held-out evaluations with what was spent
until each, and its measurements on the report split. Unpacked it is a comparison's directory again, which can be
reported, priced anew, and gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffrl.config import dump_config
from diffrl.errors import ConfigError
from diffrl.files import read_own, write_json, write_text
from diffrl.studies.compare.pairing import report_source
from diffrl.studies.compare.plan import Record
from diffrl.studies.compare.reported import EVALUATIONS, read_rows
from diffrl.studies.compare.results import STATE, read_state
from diffrl.studies.compare.shapes import ArchivedRun, Metrics, State, Summary, read_shaped, require_shape, shaped_rows
from diffrl.tracking.metrics import read_metrics
from reward_models.common.messages import quote

SUMMARY = ("iterations", "updates", "peak_memory_bytes")
SPENT = ("evaluations/", "seconds/")
"""Columns of metrics.jsonl that are an iteration's own, and are added up between two evaluations."""

HELD_OUT = "held_out/"
DIGITS = 6


def pack(directory: Path, archive: Path) -> int:
    """Write the finished runs of a comparison, measured on the report split, into one file of JSON lines.

    Args:
        directory: of the comparison.
        archive: file to write; it is replaced.

    Returns:
        How many runs it holds.

    Raises:
        ConfigError: there is no comparison.
    """
    state = read_state(directory)
    lines = [state]
    for number in range(state["seeds"]):
        for entry in state["configurations"]:
            path = directory / entry["folder"] / f"seed-{number}"
            measured = report_source(entry["config"]) is None or (path / EVALUATIONS).is_file()
            if (path / "summary.json").is_file() and measured:  # without weights it could not be measured later
                lines.append({"folder": entry["folder"], "seed": number, **_run(path)})
    write_text(archive, "".join(json.dumps(line) + "\n" for line in lines))
    return len(lines) - 1


def unpack(archive: Path, directory: Path) -> None:
    """Make a comparison's directory of an archive, with which `diffrl compare` goes on; its runs have no weights.

    Args:
        archive: that `pack` wrote.
        directory: a new one.

    Raises:
        ConfigError: the directory is there already, or the file is damaged.
    """
    if directory.exists():
        raise ConfigError(f"An archive is unpacked into a new directory. Got {directory}. Choose another.")
    try:
        state, *runs = map(json.loads, read_own(archive).splitlines())
        require_shape(State, state, f"{archive}, its plan,")
        require_shape(list[ArchivedRun], runs, f"{archive}, its runs,")
        planned = {one.candidate.folder: one for one in Record.of_state(state, str(archive)).planned.values()}
        if unplanned := {run["folder"] for run in runs} - set(planned):
            raise ConfigError(f"{archive} is damaged: it plans no runs of {quote(min(unplanned))}. Restore it.")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{archive} is damaged: {error}. Take an older version of it.") from error
    directory.mkdir(parents=True)
    write_json(directory / STATE, state)
    for run in runs:
        path = directory / run["folder"] / f"seed-{run['seed']}"
        path.mkdir(parents=True, exist_ok=True)  # an archive may hold a run twice: the later one counts
        write_text(path / "config.yaml", dump_config(planned[run["folder"]].of_seed(run["seed"], directory)))
        for name, rows in (("metrics.jsonl", run["rows"]), (EVALUATIONS, run["evaluations"])):
            write_text(path / name, "".join(json.dumps(row) + "\n" for row in rows))
        write_json(path / "summary.json", run["summary"])


def _run(path: Path) -> dict[str, Any]:
    summary = read_shaped(path / "summary.json", Summary)
    reported = read_rows(path / EVALUATIONS) if (path / EVALUATIONS).is_file() else []
    rows = shaped_rows(path / "metrics.jsonl", Metrics, read_metrics(path / "metrics.jsonl"))
    return {
        "summary": {name: summary[name] for name in SUMMARY},
        "rows": _rows(rows),
        "evaluations": [row | {"means": _rewards(row["means"]), "intervals": None} for row in reported],
    }


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with a held-out evaluation, with what all rows since the one before have spent."""
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
    """Without the parts of rewards."""
    return _short({name: value for name, value in means.items() if "/" not in name})


def _short(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in values.items()}
