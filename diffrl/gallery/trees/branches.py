"""The branches of a split beside each other: what each became, large, when a step of one of them is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffrl.gallery.trees.numbers import counted, share, three
from diffrl.gallery.trees.words import Sums, total
from diffrl.trees.record import TreeNode

Below = Mapping[int, Sequence[TreeNode]]


def samples_below(given: Sums) -> Below:
    """Scored samples below each node, and the node's own, by its id, best first."""
    found: dict[int, list[TreeNode]] = {}
    for leaf in given.scored:
        for above in given.path(leaf):
            found.setdefault(above.id, []).append(leaf)
    return found


def branches(
    given: Sums, split: TreeNode, below: Below, whole: Callable[[str], str], still: Callable[[str], str | None]
) -> list[dict[str, Any]]:
    """The drawn branches of a split; nothing where nothing splits.

    Args:
        given: the tree.
        split: the node that they leave.
        below: of `samples_below`.
        whole: address of a file in the tree's folder.
        still: address of the first frame of a file that moves; None of others.

    Returns:
        A JSON value a branch: its id, what it became in words, and the image of the best sample below it, or where
        none was scored its own.
    """
    drawn = [node for id_ in given.children.get(split.id, ()) if (node := given.record.nodes[id_]).drawn]
    return [_branch(node, below.get(node.id, ()), whole, still) for node in drawn] if len(drawn) > 1 else []


def _branch(
    node: TreeNode, samples: Sequence[TreeNode], whole: Callable[[str], str], still: Callable[[str], str | None]
) -> dict[str, Any]:
    picture = samples[0].picture if samples else node.picture
    return {
        "id": node.id,
        "picture": whole(picture) if picture else None,
        "still": still(picture) if picture else None,
        "says": _says(node, samples),
    }


def _says(node: TreeNode, samples: Sequence[TreeNode]) -> str:
    advantage = "" if node.advantage is None else f", advantage {share(node.advantage)}"
    if node.leaf is not None:
        return (f"reward {three(total(node))}" if samples else "failed") + advantage
    if not samples:
        return f"worth {three(node.value)}{advantage}"
    best, worst = three(total(samples[0])), three(total(samples[-1]))
    became = f"{counted(len(samples), 'image')}, {best}" + (f" to {worst}" if worst != best else "")
    return f"worth {three(node.value)}{advantage}; {became}"
