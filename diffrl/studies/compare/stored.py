"""The files of a comparison and of its runs as models: what is read may be damaged, or somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from diffrl.config.explore import low_precision
from diffrl.errors import DiffrlError
from diffrl.files import read_own
from diffrl.tracking.metrics import read_metrics
from reward_models.common.messages import show

STATE = "state.json"
COSTS = ("evaluations", "seconds")
MOST = 10**15
"""No count or number of a comparison is larger."""
COUNTED = ("cost/", "evaluations/", "seconds/", "held_out/")
Count = Annotated[int, Field(ge=0, le=MOST)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
Folder = Annotated[str, Field(pattern=r"^[^./\\][^/\\]*$")]
Model = TypeVar("Model")


class Stored(BaseModel):
    """A part of a file; what this version does not know of it is kept as it is."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


class _Reward(Stored):
    name: str
    label: str | None = None


class _Evaluation(Stored):
    rewards: list[_Reward] = Field(min_length=1)
    guidance_scale: Number = 1.0


class _Prompts(Stored):
    train: str | None = None
    eval: str | None = None


class StoredConfig(Stored):
    """A configuration of this version or an older one, as far as its runs are reported."""

    eval: _Evaluation
    prompts: _Prompts = _Prompts()
    run: dict[str, Any] = {}
    model: dict[str, Any] = {}


class _Copy(Stored):
    precision: str


class _Rollout(Stored):
    explore: _Copy | None = None
    draw: _Copy | None = None

    @property
    def low_precision(self) -> dict[str, str]:
        """As of `RolloutSettings`."""
        return low_precision(self.explore and self.explore.precision, self.draw and self.draw.precision)


class _Train(Stored):
    gradient_checkpointing: bool


class Priced(Stored):
    """A configuration, as far as evaluations are priced by it."""

    rollout: _Rollout
    train: _Train


class Summary(Stored):
    """summary.json, as far as it is compared."""

    iterations: Count
    updates: Count
    peak_memory_bytes: Count


class Metrics(Stored):
    """A row of metrics.jsonl: numbers by name; a score is null where it was not finite, a cost never."""

    iteration: Count

    @model_validator(mode="after")
    def _counts_are_numbers(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            number = isinstance(value, int | float) and abs(value) <= MOST
            if name.startswith(COUNTED) and not number and not (value is None and name.startswith("held_out/")):
                raise ValueError(f"{name} must be a number, got {show(value)}")
        return self


def parse_stored(model: type[Model], text: str | bytes, where: str, remedy: str = "Restore it.") -> Model:
    """Read JSON of a model.

    Args:
        model: a class, or a list of one.
        text: to be read.
        where: it is from, to begin the message with.
        remedy: the end of the message.

    Raises:
        DiffrlError: it is no JSON, or names the first place that does not fit.
    """
    try:
        return TypeAdapter(model).validate_json(text)
    except ValidationError as error:
        raise _damaged(error, where, remedy) from error


def require_fit(model: type[Model], data: Any, where: str) -> Model:
    """Make a model of parsed data.

    Raises:
        DiffrlError: names the first place that does not fit.
    """
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        raise _damaged(error, where, "Restore it.") from error


def _damaged(error: ValidationError, where: str, remedy: str) -> DiffrlError:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return DiffrlError(f"{where} is damaged: {first['msg']}. {remedy}")
    path = ".".join(map(str, first["loc"])) or "all of it"
    return DiffrlError(f"{where} is damaged, at {path}: {first['msg']}. Got {show(first['input'])}. {remedy}")


def read_stored(path: Path, model: type[Model]) -> Model:
    """Read a JSON file of a model.

    Raises:
        FileNotFoundError: it is not there.
        DiffrlError: it cannot be read, is no JSON, or does not fit.
    """
    try:
        text = read_own(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DiffrlError(f"{path} is damaged: {error}. Restore it.") from error
    return parse_stored(model, text, str(path))


def read_rows_of(run: Path) -> list[dict[str, Any]]:
    """Read a run's metrics.jsonl.

    Raises:
        DiffrlError: a row does not fit; the message counts from 0.
    """
    path = run / "metrics.jsonl"
    rows = read_metrics(path)
    require_fit(list[Metrics], rows, str(path))
    return rows
