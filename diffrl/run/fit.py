"""Whether a checkpoint is one that this run can go on from, looked at before anything of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diffrl.checkpoint.files import Checkpoint
from diffrl.checkpoint.state import require_optimizer, require_rng
from diffrl.config.schema import Config
from diffrl.errors import CheckpointError
from diffrl.run.journal import random_group
from diffrl.training.policy import require_weights
from diffrl.training.session import Session

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Fidelity(_Strict):
    low: Count
    keep: Count
    fallen_back: bool


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

    iteration: Annotated[int, Field(ge=1)]
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
    """The averaged weights that a run keeps beside its policy, by their names in a checkpoint."""
    kept = {"ema": config.train.ema is not None, "old": config.objective.old_policy_is_ema}
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
    for name in {"ema", "old"} & (tensors.keys() ^ set(averages)):
        raise CheckpointError(
            f"The checkpoint and the configuration disagree on the averaged weights {name!r}. Resume with the run's "
            "own configuration."
        )
    for name in ("policy", *averages):
        require_weights(session.policy.parameters, _group(tensors, name))
    require_optimizer(session.optimizer, _group(tensors, "optimizer"), state["optimizer"])
    own = random_group(session.ranks.rank)
    if (own in tensors) != (own in state):
        raise CheckpointError(f"Of the generators {own!r}, the tensors or the values are missing.")
    if own in tensors:  # a rank that was not there goes on as it was seeded
        require_rng(tensors[own], state[own])


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
