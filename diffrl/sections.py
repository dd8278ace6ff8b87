"""What every section of settings shares: strictness, and problems worded for the user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from diffrl.errors import ConfigError
from diffrl.registry import require_call, resolve
from reward_models.common.messages import closest, show

Item = TypeVar("Item")
ListOf = Annotated[tuple[Item, ...], Field(strict=False)]
"""A YAML list, kept as a tuple; its items stay strict."""

MOST_ITERATIONS = 10_000_000
"""The longest run; whatever counts in iterations ends there too."""

MOST_SAMPLES = 100_000
"""The most samples of a prompt or a batch, and prompts of an iteration: more than any machine holds at once."""

MOST_STEPS = 1000
"""The most denoising steps: as many noise levels as such models were trained on."""

MOST_GUIDANCE = 1000

LONGEST_PATH = 4096
"""The most characters of a path, as on Linux."""

LONGEST_TEXT = 200
"""The most characters of a name."""

OWN = "module:Object"
"""The form of a name that is none of ours: an object of a module of the user's own."""

OWN_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"

__all__ = ["ListOf", "OwnKind", "Section", "kind_of", "known_or_own", "only", "problems", "rule", "show"]


class Section(BaseModel):
    """A section of keys: unknown keys refused, values neither coerced nor changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


def rule(text: str) -> PydanticCustomError:
    """A problem with one value: `text` goes on after the key's path ("must be ... . Got ... . Do ... .")."""
    return PydanticCustomError("rule", "{rule}", {"rule": text})


def problems(texts: Sequence[str]) -> PydanticCustomError:
    """Problems between several keys: whole sentences that name their paths."""
    return PydanticCustomError("problems", "{text}", {"text": "\n".join(texts), "problems": list(texts)})


def only(value: Any, why: str, fix: str) -> BeforeValidator:
    """Accept nothing but `value`: the key is there, its feature is not.

    Args:
        value: the one value that is accepted; an empty list stands for "empty".
        why: why it is the only one, without a full stop.
        fix: what to do, without a full stop.
    """

    def check(given: Any) -> Any:
        comparable = list(given) if isinstance(given, tuple) else given
        if comparable != value or isinstance(comparable, bool) != isinstance(value, bool):
            name = "empty" if value == [] else show(value)
            raise rule(f"must be {name}: {why}. Got {show(given)}. {fix}.")
        return given

    return BeforeValidator(check)


def known_or_own(key: str, table: Mapping[str, str], arguments: Sequence[str]) -> Callable[[str], str]:
    """Accept a registered name, or a function of the user's own that can be called as diffrl is going to.

    Args:
        key: dotted path of the key, for the message.
        table: registered names; their objects are not imported.
        arguments: names of what a function of the user's own is given, in their places.
    """

    def check(name: str) -> str:
        if name in table:
            return name
        if ":" not in name:
            close = closest(name, table)
            hint = f" Did you mean {close!r}?" if close else ""
            raise rule(f"must be one of {', '.join(table)}, or 'module:function'. Got {show(name)}.{hint}")
        try:
            require_call(key, name, resolve(key, table, name), arguments, {})
        except ConfigError as error:
            raise rule(str(error).removeprefix(f"{key} ")) from error
        return name

    return check


def _own_path(path: str) -> str:
    if not re.fullmatch(OWN_PATH, path):
        raise rule(f"must be {OWN}, such as my_module:Mine. Got {show(path)}. Mend the path.")
    return path


OwnKind = Annotated[
    str,
    Field(max_length=LONGEST_TEXT, json_schema_extra={"pattern": OWN_PATH}),
    AfterValidator(_own_path),
]
"""The kind of a section whose component is the user's own."""


def kind_of(section: Any) -> str | None:
    """By which kind a section of several is read: its own `kind`, or `OWN` for a path; None where it has none."""
    kind = section.get("kind") if isinstance(section, Mapping) else getattr(section, "kind", None)
    if kind is None:
        return None
    return OWN if isinstance(kind, str) and ":" in kind else str(kind)
