"""Names that configurations use, resolved to objects only when they are needed.

A name is either registered here or a dotted path "module:Object" of the user's own; reward models have a registry of
their own (`reward_models.registry`), because they are used without diffrl.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from diffrl.errors import ConfigError
from reward_models.messages import closest, describe, quote

OBJECTIVES: Mapping[str, str] = {
    "grpo": "diffrl.objectives.grpo:GRPO",
    "nft": "diffrl.objectives.nft:NFT",
    "awm": "diffrl.objectives.awm:AWM",
    "dgpo": "diffrl.objectives.dgpo:DGPO",
    "crd": "diffrl.objectives.crd:CRD",
    "tilt": "diffrl.objectives.tilt:Tilt",
}
DYNAMICS: Mapping[str, str] = {
    "ode": "diffrl.functional.dynamics:ode_step",
    "flow_sde": "diffrl.functional.dynamics:flow_sde_step",
    "dance_sde": "diffrl.functional.dynamics:dance_sde_step",
    "cps": "diffrl.functional.dynamics:cps_step",
}


def resolve(kind: str, table: Mapping[str, str], name: str) -> Any:
    """The object behind a registered name or a "module:Object" path.

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
        return getattr(importlib.import_module(module_name), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a stranger's module may raise anything, or be a script that exits
        raise ConfigError(
            f"{kind} {quote(name)} cannot be imported: {describe(error)}. Check the name, and the module."
        ) from error
