"""The objective's section: of one of the registered kinds, or of one of the user's own.

Each kind's settings stand beside its loss, in `objectives/`; they are found by the registry alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Discriminator, Tag

from diffrl.objectives.base import ObjectiveSettings
from diffrl.registry import OBJECTIVES, OWN_OBJECTIVE, resolve
from diffrl.sections import OWN, kind_of

__all__ = ["SETTINGS", "ObjectiveSettings", "OneObjective"]

SETTINGS: Mapping[str, type[ObjectiveSettings]] = {
    kind: resolve("objective.kind", OBJECTIVES, path) for kind, path in {**OBJECTIVES, OWN: OWN_OBJECTIVE}.items()
}

if TYPE_CHECKING:
    OneObjective = ObjectiveSettings
else:
    OneObjective = Annotated[
        Union[tuple(Annotated[settings, Tag(kind)] for kind, settings in SETTINGS.items())],  # noqa: UP007
        Discriminator(kind_of),
    ]
