"""Credit rules of the user's own, "module:function", held against the contract of a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.registry import CREDIT_RULES, resolve

if TYPE_CHECKING:
    from diffrl.credit.assign import Scored


def own_step_rewards(name: str, scored: Scored) -> Tensor:
    """What each step earns by a function of the user's own.

    Args:
        name: "module:function"; it is called with a copy of what is known of the forest.
        scored: the forest, and what its samples and nodes are worth.

    Returns:
        (N,) float32 on the CPU, by the nodes in which the steps end; NaN where a step is left out.

    Raises:
        DiffrlError: the function did not give one such number a node.
    """
    copies = {key: part.clone() for key, part in scored._asdict().items() if isinstance(part, Tensor)}
    given: Any = resolve("credit.reward", CREDIT_RULES, name)(scored._replace(**copies))
    nodes = len(scored.forest.parent)
    if not isinstance(given, Tensor) or given.shape != (nodes,) or not given.is_floating_point():
        what = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise DiffrlError(
            f"The credit rule {name} must return what each step earns, a floating-point tensor of one number a node, "
            f"({nodes},). Got {what}. Return one like scored.worth."
        )
    if bool(given.isinf().any()):
        raise DiffrlError(
            f"The credit rule {name} must return finite numbers, or NaN where a step is left out. Got inf. Mend it."
        )
    return given.detach().float()
