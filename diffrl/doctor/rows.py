"""What the report of `diffrl doctor` is made of: one row a question, each with its bound and what became of it."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from diffrl.errors import DiffrlError, NotHereError
from reward_models.common.errors import RewardError

Status = Literal["pass", "fail", "not here"]

RUNNING = "the process ended while this ran"
"""What stands in place of an answer until it is there."""
LONGEST = 300
"""Characters that are kept of what went wrong."""
FRAMES = 12
"""Innermost calls that are kept of it."""


@dataclass(frozen=True)
class Result:
    """The answer to a row's question."""

    passed: bool  # whether it is within the bound
    measured: str  # what was measured, in words with its unit
    facts: dict[str, Any] = field(default_factory=dict)  # numbers behind it, for the JSON


@dataclass(frozen=True)
class Row:
    """A question that the doctor asks."""

    name: str  # what is asked about
    bound: str  # what `work` must find to pass, in words
    # asks; raises NotHereError where this machine lacks something, anything else is a failure
    work: Callable[[], Result]
    needs: float = 0.0  # seconds that must be left to start it


@dataclass(frozen=True)
class Outcome:
    """A row of the report."""

    section: str  # that it belongs to
    name: str  # as in `Row`
    status: Status  # pass, fail or not here
    measured: str  # what was found, or why nothing was
    bound: str  # as in `Row`
    seconds: float = 0.0  # that it took
    facts: dict[str, Any] = field(default_factory=dict)  # as in `Result`


class Budget:
    """Says whether there is time to start something."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Return seconds."""
        return self._end - time.monotonic()

    def share(self, parts: int) -> Budget:
        """Return an even part of what is left, for the next of `parts` things."""
        return Budget(self.left / max(1, parts))


Rows = Callable[[torch.device, Budget], Iterator[Row]]
"""A section: its rows for a device, within a time."""


def answer(section: str, row: Row, budget: Budget) -> Outcome:
    """Ask one row's question; nothing that goes wrong in it ends the others."""
    if budget.left <= row.needs:
        return Outcome(section, row.name, "not here", "no time left: give --minutes", row.bound)
    start, facts = time.perf_counter(), {}
    status: Status
    try:
        result = row.work()
        status, measured, facts = "pass" if result.passed else "fail", result.measured, result.facts
    except NotHereError as error:
        status, measured = "not here", _first_line(error)
    except (DiffrlError, RewardError) as error:
        status, measured, facts = "fail", _first_line(error), _where(error)
    except Exception as error:  # whatever a kernel, a library or our own code raises is this row's answer
        status, measured, facts = "fail", f"{type(error).__name__}: {_first_line(error)}", _where(error)
    return Outcome(section, row.name, status, measured, row.bound, round(time.perf_counter() - start, 2), facts)


def write_answers(section: str, rows: Rows, device: torch.device, budget: Budget, file: Path) -> None:
    """Ask all rows of a section, and append each answer to a file as a line of JSON as soon as it is there.

    The row that is being asked stands in the file first, as a failure: if it takes the process with it, that is known.
    """
    for row in rows(device, budget):
        ended = Outcome(section, row.name, "fail", RUNNING, row.bound)
        for outcome in (lambda ended=ended: ended, lambda row=row: answer(section, row, budget)):
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(outcome())) + "\n")


def read_answers(file: Path) -> list[Outcome]:
    """Read what `write_answers` wrote, the last of each row; an unfinished last line is left out."""
    if not file.is_file():
        return []
    outcomes: dict[str, Outcome] = {}
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            outcome = Outcome(**json.loads(line))
            outcomes[outcome.name] = outcome
    return list(outcomes.values())


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:LONGEST]


def _where(error: BaseException) -> dict[str, Any]:
    """Return what was called when an error came, without the folders above, which may name their owner."""
    calls = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return {"calls": [f"{'/'.join(Path(c.filename).parts[-2:])}:{c.lineno} {c.name}" for c in calls]}
