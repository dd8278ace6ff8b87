"""What every section of settings shares: strictness, and problems worded for the user."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from diffrl.errors import ConfigError
from diffrl.registry import require_call, resolve
from reward_models.common.messages import closest, show
from reward_models.common.sections import ListOf, Section, problems, rule

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

__all__ = ["ListOf", "Known", "OwnKind", "Section", "kind_of", "only", "problems", "rule", "show"]


def only(value: Any, why: str, fix: str) -> BeforeValidator:
    """Accept nothing but `value`: the key is there, its feature is not.

    Args:
        value: the one value that is accepted; an empty list stands for "empty".
        why: why it is the only one, without a full stop.
        fix: what to do, without a full stop.
    """

    def check(received: Any) -> Any:
        comparable = list(received) if isinstance(received, tuple) else received
        if comparable != value or isinstance(comparable, bool) != isinstance(value, bool):
            name = "empty" if value == [] else show(value)
            raise rule(f"must be {name}: {why}. Got {show(received)}. {fix}.")
        return received

    return BeforeValidator(check)


@dataclass(frozen=True, eq=False)
class Known:
    """A text that must be a registered name; validator and schema follow the registry.

    Args:
        key: dotted path of the key, for the message.
        names: registered; their objects are not imported.
        more: further names that the key takes, before the registered ones.
        arguments: names of what a function of the user's own is given, in their places; None where the key takes none.
    """

    key: str
    names: Collection[str]
    more: tuple[str, ...] = ()
    arguments: Sequence[str] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        enum = {"enum": [*self.more, *self.names]}
        return enum if self.arguments is None else {"anyOf": [enum, {"type": "string", "pattern": OWN_PATH}]}

    def _check(self, name: str) -> str:
        """Accept a known name, or a function of the user's own that can be called as diffrl is going to."""
        known = (*self.more, *self.names)
        if name in known:
            return name
        if self.arguments is None or ":" not in name:
            close = closest(name, known)
            hint = f" Did you mean {close!r}?" if close else ""
            path_hint = "" if self.arguments is None else ", or 'module:function'"
            raise rule(f"must be one of {', '.join(known)}{path_hint}. Got {show(name)}.{hint}")
        try:
            require_call(self.key, name, resolve(self.key, {}, name), self.arguments, {})
        except ConfigError as error:
            raise rule(str(error).removeprefix(f"{self.key} ")) from error
        return name


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
    """Return the kind by which one of several sections is read: its `kind`, or `OWN` for a path; None without one."""
    kind = section.get("kind") if isinstance(section, Mapping) else getattr(section, "kind", None)
    if kind is None:
        return None
    return OWN if isinstance(kind, str) and ":" in kind else str(kind)
