"""Names that configurations use, resolved to objects only when they are needed.

A name is either registered here or a dotted path "module:Object" of the user's own; reward models have a registry of
their own (`reward_models.registry`), because they are used without diffrl.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError, DiffrlError
from reward_models.common.messages import closest, describe, quote
from reward_models.common.own_modules import import_own

OBJECTIVES: Mapping[str, str] = {
    "grpo": "diffrl.objectives.grpo:GrpoSettings",
    "nft": "diffrl.objectives.nft:NftSettings",
    "awm": "diffrl.objectives.awm:AwmSettings",
    "dgpo": "diffrl.objectives.dgpo:DgpoSettings",
    "crd": "diffrl.objectives.crd:CrdSettings",
    "art": "diffrl.objectives.art:ArtSettings",
    "dpo": "diffrl.objectives.dpo:DpoSettings",
    "tilt": "diffrl.objectives.tilt:TiltSettings",
}
OWN_OBJECTIVE = "diffrl.objectives.own:OwnObjectiveSettings"
SELECTIONS: Mapping[str, str] = {
    "best_worst": "diffrl.functional.selection:best_worst",
    "max_variance": "diffrl.functional.selection:max_variance",
    "sibling_contrast": "diffrl.functional.selection:sibling_contrast",
    "family_contrast": "diffrl.functional.selection:family_contrast",
    "random": "diffrl.functional.selection:random_choice",
    "all": "diffrl.functional.selection:select_all",
}
CREDIT_RULES: Mapping[str, str] = {
    "outcome": "diffrl.credit.rules:OUTCOME",
    "fused": "diffrl.credit.rules:FUSED",
    "incremental": "diffrl.credit.rules:INCREMENTAL",
    "turning_point": "diffrl.credit.rules:TURNING_POINT",
}
PRECISIONS: Mapping[str, str] = {
    "bfloat16": "diffrl.precision.formats.bfloat16:PRECISION",
    "int8": "diffrl.precision.formats.int8:PRECISION",
    "fp8": "diffrl.precision.formats.fp8:PRECISION",
    "mxfp8": "diffrl.precision.formats.mxfp8:PRECISION",
    "nvfp4": "diffrl.precision.formats.nvfp4:PRECISION",
}
DYNAMICS: Mapping[str, str] = {
    "ode": "diffrl.functional.dynamics:ode_step",
    "flow_sde": "diffrl.functional.dynamics:flow_sde_step",
    "dance_sde": "diffrl.functional.dynamics:dance_sde_step",
    "cps": "diffrl.functional.dynamics:cps_step",
}


def resolve(kind: str, table: Mapping[str, str], name: str) -> Any:
    """Return the object behind a registered name or a "module:Object" path.

    Args:
        kind: what is looked up, for the message ("model family").
        table: registered names.
        name: what the user wrote.

    Raises:
        ConfigError: unknown name (the message lists the known ones) or a path that cannot be imported.
    """
    path = table.get(name, name)
    if ":" not in path:
        close = closest(name, table)
        hint = f" Did you mean {close!r}?" if close else ""
        raise ConfigError(
            f"{kind} must be a known name or 'module:Object'. Got {quote(name)}.{hint} Known: "
            f"{', '.join(sorted(table))}."
        )
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(import_own(module_name), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's module may raise anything, or be a script that exits
        raise ConfigError(
            f"{kind} {quote(name)} cannot be imported: {describe(error)}. Check the name, and the module."
        ) from error


@contextmanager
def own_code(component: str) -> Iterator[None]:
    """Name the user's own code in what it raises, except for lack of memory.

    Args:
        component: to begin the message with, "The credit rule my_module:rule".

    Raises:
        DiffrlError: in place of any other exception.
    """
    try:
        yield
    except (DiffrlError, MemoryError):
        raise
    except Exception as error:  # whatever a user's function raises
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise DiffrlError(f"{component} raised {describe(error)} ({where}). Mend it.") from error


def require_call(kind: str, name: str, made_by: Any, arguments: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse a component of the user's own that cannot be called as diffrl is going to.

    Args:
        kind: the key that names it, for the message ("objective.kind").
        name: what the user wrote there.
        made_by: the class or function.
        arguments: names of what diffrl gives it, in their places.
        options: keyword arguments that the configuration gives it.

    Raises:
        ConfigError: it is no callable, or takes other arguments.
    """
    if not callable(made_by):
        raise ConfigError(f"{kind} must name a class or a function. Got {quote(name)}, a {type(made_by).__name__}.")
    try:
        signature = inspect.signature(made_by)
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        call = ", ".join([*arguments, *(f"{option}=..." for option in options)])
        raise ConfigError(
            f"{kind} must name what can be called with ({call}). Got {quote(name)}, which takes {signature}: {error}. "
            f"Change its arguments, or the options."
        ) from error
