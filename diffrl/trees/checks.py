"""What a tree's document must hold to be one: kinds of values, finite numbers, parents before children."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffrl.trees.record import TreeNode

PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PICTURES = ("picture", "proxy_picture", "before", "aim", "after")
SCALING = {"weight", "shift", "scale"}
_COUNT, _NUMBER = (int,), (int, float, type(None))
RECORD: dict[str, tuple[type, ...]] = {
    "iteration": _COUNT,
    "group": _COUNT,
    "prompt": (str,),
    "seed": _COUNT,
    "sigmas": (list,),
    "branching": (dict,),
    "rule": (dict,),
    "explored": (dict, type(None)),
    "nodes": (list,),
    "metadata": (dict,),
    "weights": (dict,),
}
NODE: dict[str, tuple[type, ...]] = {
    "id": _COUNT,
    "parent": (int, type(None)),
    "root": _COUNT,
    "child": _COUNT,
    "step": (int, type(None)),
    "sigma": (int, float),
    "drawn": (bool,),
    "value": _NUMBER,
    "credited": _NUMBER,
    "advantage": _NUMBER,
    "turning": (bool,),
    "trained": (bool,),
    "log_ratio": _NUMBER,
    "picture": (str, type(None)),
    "leaf": (dict, type(None)),
    "pushed": (dict, type(None)),
}
PUSH: dict[str, tuple[type, ...]] = {
    "sigma": (int, float),
    "trained": (bool,),
    "size": _NUMBER,
    "children": _COUNT,
    "pulls": (dict,),
    "moved": _NUMBER,
    "cosine": _NUMBER,
    "eta": (int, float),
    "before": (str, type(None)),
    "aim": (str, type(None)),
    "after": (str, type(None)),
}
LEAF: dict[str, tuple[type, ...]] = {
    "path": (list,),
    "proxy": _NUMBER,
    "proxy_picture": (str, type(None)),
    "chosen": (str, type(None)),
    "audit": (bool,),
    "total": _NUMBER,
    "rewards": (dict,),
    "error": (str, type(None)),
    "advantage": _NUMBER,
    "trained": (bool,),
}


def require_kinds(entry: Any, kinds: Mapping[str, tuple[type, ...]], what: str) -> None:
    """What is there is of the right kind; what must be there is seen to by the classes themselves."""
    if not isinstance(entry, dict):
        raise ValueError(f"a {what} is no object")
    for name, value in entry.items():
        if name not in kinds:
            raise ValueError(f"a {what} has no {name!r}")
        if not isinstance(value, kinds[name]) or (isinstance(value, bool) and bool not in kinds[name]):
            raise ValueError(f"{name} of a {what} is {value!r:.40}")
        if isinstance(value, (int, float)) and not _is_sane(value):
            raise ValueError(f"{name} of a {what} is a number beyond all bounds")
    for name, scaling in entry.get("weights", {}).items():
        if not isinstance(scaling, dict) or set(scaling) != SCALING or not all(map(_is_number, scaling.values())):
            raise ValueError(f"the weight of {name!r:.40} is not a finite weight, shift and scale")
    if not all(value is None or _is_sane(value) for value in entry.get("rewards", {}).values()):
        raise ValueError("a reward is no finite number")
    if not all(map(_is_number, entry.get("pulls", {}).values())):
        raise ValueError("the pull of a sample is no finite number")
    for name in ("sigmas", "path"):
        if not all(map(_is_sane, entry.get(name, []))):
            raise ValueError(f"{name} of a {what} holds something else than finite numbers")
    for name in ("rule", "explored"):
        words = (entry.get(name) or {}).values()
        if not all(value is None or isinstance(value, str) or _is_sane(value) for value in words):
            raise ValueError(f"{name} of a {what} holds something else than words and numbers")
    if any(entry.get(name) and not PICTURE.fullmatch(entry[name]) for name in PICTURES):
        raise ValueError(f"a {what} names a picture outside its folder")


def _is_sane(value: Any) -> bool:
    """Whether it is a finite number, and a whole one fits 64 bits: JSON's may have any number of digits."""
    return isinstance(value, (int, float)) and (abs(value) < 2**64 if isinstance(value, int) else math.isfinite(value))


def _is_number(value: Any) -> bool:
    return _is_sane(value) and not isinstance(value, bool)


def require_order(nodes: Sequence[TreeNode]) -> None:
    """Parents come before their children, and every node stands at its number.

    Raises:
        ValueError: one does not.
    """
    for place, node in enumerate(nodes):
        if node.id != place or (node.parent is not None and not 0 <= node.parent < place):
            raise ValueError(f"node {node.id} at place {place} has no parent before it")
        if node.root < 0 or node.child < 0:
            raise ValueError(f"node {node.id} counts from below 0")


def require_pulls(nodes: Sequence[TreeNode]) -> None:
    """What pulls at a split is a sample."""
    for node in nodes:
        for place in node.pushed.pulls if node.pushed is not None else ():
            if not 0 <= place < len(nodes) or nodes[place].leaf is None:
                raise ValueError(f"node {place} pulls at node {node.id} and is no sample")


def require_steps(sigmas: Sequence[float], branching: Mapping[int, int], nodes: Sequence[TreeNode]) -> None:
    """Every step leads from one noise level to another, and roots alone are reached by none."""
    steps = range(len(sigmas) - 1)
    for step, children in branching.items():
        if step not in steps or children < 1:
            raise ValueError(f"branching has {children!s:.20} children at step {step!s:.20} of {len(steps)}")
    for node in nodes:
        if (node.parent is None) != (node.step is None) or (node.step is not None and node.step not in steps):
            raise ValueError(f"node {node.id} ends step {node.step} of {len(steps)}")
        parent = None if node.parent is None else nodes[node.parent]
        if parent is not None and parent.step is not None and node.step is not None and node.step <= parent.step:
            raise ValueError(f"node {node.id} comes before the node above it")
