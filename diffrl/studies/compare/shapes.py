"""The shape that a comparison's files must have: what is read of a folder that may be damaged, or somebody else's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from diffrl.errors import DiffrlError
from diffrl.files import read_own
from reward_models.common.messages import show

MOST = 10**15
"""No count or number of a comparison is larger."""
COUNTED = ("cost/", "evaluations/", "seconds/", "held_out/")
Count = Annotated[int, Field(ge=0, le=MOST)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
Folder = Annotated[str, Field(pattern=r"^[^./\\][^/\\]*$")]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Reward(_Shape):
    name: str
    label: str | None = None


class _Evaluation(_Shape):
    rewards: list[_Reward] = Field(min_length=1)
    guidance_scale: Number = 1.0


class _Explore(_Shape):
    precision: str


class _Rollout(_Shape):
    explore: _Explore | None = None


class _Train(_Shape):
    gradient_checkpointing: bool


class _Prompts(_Shape):
    train: str | None = None
    eval: str | None = None


class Priced(_Shape):
    """A configuration, as far as evaluations are priced by it."""

    rollout: _Rollout
    train: _Train


class _Config(_Shape):
    eval: _Evaluation
    prompts: _Prompts = _Prompts()
    run: dict[str, Any] = {}
    model: dict[str, Any] = {}


class _Entry(_Shape):
    label: str
    folder: Folder
    config: _Config


class _PlannedEntry(_Entry):
    path: str
    overrides: list[str]
    iteration_cost: Number
    iteration_seconds: Number | None


class _Budget(_Shape):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["evaluations", "seconds"]
    amount: Number


class _Prices(_Shape):
    model_config = ConfigDict(extra="forbid")
    name: str
    hardware: str
    trained: Number = 1.0
    checkpointed: Number = 1.0
    explore: dict[str, Number] | None = None
    sources: dict[str, str] = {}


class State(_Shape):
    """state.json, as far as it is reported."""

    budget: _Budget
    evals: int = Field(ge=1, le=10**9)
    seeds: int = Field(ge=1, le=100_000)
    prices: _Prices | None = None
    inputs: dict[str, dict[str, str] | None] | None = None
    input_changes: list[str] | None = None
    configurations: list[_Entry]


class Plan(State):
    """state.json as it is gone on with."""

    configurations: list[_PlannedEntry]  # type: ignore[assignment]


class Summary(_Shape):
    """summary.json, as far as it is compared."""

    iterations: Count
    updates: Count
    peak_memory_bytes: Count


class Metrics(_Shape):
    """A row of metrics.jsonl: numbers by name; a score is null where it was not finite, a cost never."""

    iteration: Count

    @model_validator(mode="after")
    def _counts_are_numbers(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            number = isinstance(value, int | float) and abs(value) <= MOST
            if name.startswith(COUNTED) and not number and not (value is None and name.startswith("held_out/")):
                raise ValueError(f"{name} must be a number, got {show(value)}")
        return self


class Evaluated(_Shape):
    """A row of evaluations.jsonl."""

    weights: str
    guidance_scale: Number
    n: Count
    failed: Count = 0
    means: dict[str, Number | None]
    digest: str | None = None
    variety: dict[str, Number | None] | None = None


class ArchivedRun(_Shape):
    """A line of an archive: a finished run."""

    folder: Folder
    seed: Count
    summary: Summary
    rows: list[Metrics]
    evaluations: list[Evaluated]


def require_shape(shape: Any, data: Any, where: str) -> Any:
    """Return JSON data as they are, if they have the shape.

    Args:
        shape: a class of this module, or a list of one.
        data: parsed.
        where: the file, to begin the message with.

    Raises:
        DiffrlError: names the first place that has not.
    """
    try:
        TypeAdapter(shape).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"])) or "all of it"
        got = show(first["input"])
        raise DiffrlError(f"{where} is damaged, at {path}: {first['msg']}. Got {got}. Restore it.") from error
    return data


def read_shaped(path: Path, shape: Any) -> Any:
    """Read a JSON file of a shape.

    Raises:
        FileNotFoundError: it is not there.
        DiffrlError: it cannot be read, is no JSON, or has another shape.
    """
    try:
        data = json.loads(read_own(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DiffrlError(f"{path} is damaged: {error}. Restore it.") from error
    return require_shape(shape, data, str(path))


def shaped_rows(path: Path, shape: Any, rows: Sequence[Any]) -> Sequence[Any]:
    """Return a file's rows as they are, if each has the shape.

    Raises:
        DiffrlError: names the first place that has not, rows counted from 0.
    """
    return list(require_shape(list[shape], rows, str(path)))
