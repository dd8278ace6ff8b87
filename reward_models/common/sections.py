"""Settings as pydantic models: strict sections, rules in the user's words, and the first problem as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from reward_models.common.messages import LONGEST_NAME, closest, cut, show

Item = TypeVar("Item")
ListOf = Annotated[tuple[Item, ...], Field(strict=False)]
"""A YAML list, kept as a tuple; its items stay strict."""


class Section(BaseModel):
    """A section of keys: unknown keys refused, values neither coerced nor changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


def rule(text: str) -> PydanticCustomError:
    """Return a problem with one value: `text` goes on after the key's path ("must be ... . Got ... . Do ... .")."""
    return PydanticCustomError("rule", "{rule}", {"rule": text})


def problems(texts: str | Sequence[str]) -> PydanticCustomError:
    """Return problems between several keys, one or more: whole sentences that name their paths."""
    texts = [texts] if isinstance(texts, str) else texts
    return PydanticCustomError("problems", "{text}", {"text": "\n".join(texts), "problems": list(texts)})


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem with the values of a model: the key, the rule and what was received."""
    detail = error.errors(include_url=False)[0]
    kind, message = detail["type"], detail["msg"]
    path = cut(".".join(map(str, detail["loc"])), LONGEST_NAME)
    if kind == "extra_forbidden":
        close = closest(detail["loc"][-1], model.model_fields)
        hint = f" Did you mean {close!r}?" if close else ""
        return f"{path} is not a known key.{hint} Known keys: {', '.join(model.model_fields)}."
    if kind == "rule":
        return f"{path} {message}"
    return message if kind == "problems" else f"{path}: {message}. Got {show(detail['input'])}.".removeprefix(": ")
