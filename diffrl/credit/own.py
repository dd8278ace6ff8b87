"""Credit rules of the user's own, "module:function", held against the contract of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.registry import CREDIT_RULES, own_code, resolve

if TYPE_CHECKING:
    from diffrl.credit.assign import Scored


def own_step_rewards(name: str, scored: Scored) -> Tensor:
    """Return what each step earns by a function of the user's own.

    Args:
        name: "module:function"; it is called with a copy of what is known of the forest.
        scored: the forest, and what its samples and nodes are worth.

    Returns:
        (N,) float32 on the CPU, by the nodes in which the steps end; NaN where a step is left out.

    Raises:
        DiffrlError: the function did not give one such number a node.
    """
    forest: Any = replace(scored.forest, **_copies(vars(scored.forest)))
    copies = scored._replace(forest=forest, **_copies(scored._asdict()))
    rule = resolve("credit.reward", CREDIT_RULES, name)
    with own_code(f"The credit rule {name}"):
        result: Any = rule(copies)
    nodes = len(scored.forest.parent)
    fits = isinstance(result, Tensor) and result.shape == (nodes,) and result.is_floating_point()
    if not fits or result.device != scored.outcome.device:
        what = type(result).__name__
        if isinstance(result, Tensor):
            what = f"{result.dtype} {tuple(result.shape)} on {result.device}"
        raise DiffrlError(
            f"The credit rule {name} must return what each step earns, a floating-point tensor of one number a node, "
            f"({nodes},), on the CPU. Got {what}. Return one like scored.value."
        )
    earned: Tensor = result.detach().float()
    if bool(earned.isinf().any()):
        raise DiffrlError(
            f"The credit rule {name} must return finite numbers, or NaN where a step is left out. Got inf. Mend it."
        )
    return earned


def _copies(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part.clone() for key, part in parts.items() if isinstance(part, Tensor)}
