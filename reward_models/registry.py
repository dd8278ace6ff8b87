"""Names of reward models, resolved lazily so that listing them imports nothing heavy."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from reward_models.errors import RewardError

if TYPE_CHECKING:
    from reward_models.base import Scorer

SCORERS: Mapping[str, str] = {
    "moving_shapes": "reward_models.moving_shapes:MovingShapesScorer",
    "moving_shapes_strict": "reward_models.moving_shapes:StrictMovingShapesScorer",
    "shapes": "reward_models.shapes:ShapesScorer",
    "shapes_strict": "reward_models.shapes:StrictShapesScorer",
}


def resolve_scorer(name: str) -> str:
    """The "module:Object" path of a registered name, or `name` itself if it already is such a path.

    Raises:
        RewardError: the name is neither; the message lists the known names.
    """
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return name
    close = difflib.get_close_matches(name, SCORERS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise RewardError(
        f"A reward is a known name or 'module:Object'. Got {name!r}.{hint} Known names: {', '.join(sorted(SCORERS))}."
    )


def load_reward(name: str, **options: Any) -> Scorer:
    """Make a scorer.

    Args:
        name: a registered name, or "module:Object" for a scorer of your own.
        **options: keyword arguments of the scorer's constructor.

    Returns:
        A callable `Scorer`.

    Raises:
        RewardError: unknown name, or options that the scorer does not take.
    """
    module_name, _, attribute = resolve_scorer(name).partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RewardError(f"The reward {name!r} cannot be imported: {error}.") from error
    try:
        return cast("Scorer", factory(**options))
    except TypeError as error:
        raise RewardError(f"The reward {name!r} does not take these options: {options}. {error}.") from error
