"""Splits that train (tree tilt): what each asked of its prediction, what pulled and what pushed, and what came of it.

Everything here is read from the record; a branch's weight is the sum of its images' weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diffrl.gallery.trees.facts import Fact, Paragraph, fact
from diffrl.gallery.trees.numbers import NOTHING, compact, counted, known, level, number, push, share, three
from diffrl.gallery.trees.words import Sums
from diffrl.trees.record import PUSHED, Push, TreeNode

TITLE = "What the splits teach"
TILT = (
    "The splits train here, by tree tilt: at each, the predicted image is drawn towards the better of the images "
    "below it and away from the worse."
)
ENDS = 5
"""How many images that pull, and how many that push away, a panel shows."""


def train(given: Sums) -> bool:
    """Whether splits train in this tree, and not its steps."""
    return bool(given.record.rule.get("nodes")) and not given.record.rule.get("edges")


def draws(node: TreeNode | None) -> bool:
    """Whether a node's split has a direction to train along."""
    own = node.pushed if node is not None else None
    return own is not None and own.trained and (number(own.size) > 0 or not known(own.size))


def splits(given: Sums) -> list[TreeNode]:
    """Nodes whose split could have trained, those of the longest direction first."""
    found = [node for node in given.record.nodes if node.pushed is not None]
    return sorted(found, key=lambda node: -number(_push(node).size))


def weight(given: Sums, node: TreeNode) -> float | None:
    """Weight of a branch in the direction of the split that it leaves; None where it was not compared."""
    above = given.parent(node)
    if above is None or above.pushed is None:
        return None
    below = [leaf.id for leaf in given.leaves_below(node) if leaf.id in above.pushed.pulls]
    return sum(above.pushed.pulls[leaf] for leaf in below) if below else None


def asked(given: Sums, node: TreeNode) -> float | None:
    """What a step's line shows: its advantage; where splits train, its branch's weight in the direction."""
    return weight(given, node) if train(given) else node.advantage


def weights_of(given: Sums, leaf: TreeNode) -> list[tuple[TreeNode, float]]:
    """Splits on the way to an image, with its weight in the direction of each."""
    above = [node for node in given.path(leaf) if node.pushed is not None and leaf.id in node.pushed.pulls]
    return [(node, _push(node).pulls[leaf.id]) for node in above]


def why_not(given: Sums, node: TreeNode) -> str:
    """Why a split has no direction; "" where it has one."""
    own = node.pushed
    if own is None or draws(node):
        return ""
    if own.children < 2:
        return "fewer than two of its branches hold an image that counts, which leaves nothing to compare"
    advantages = [given.record.nodes[leaf].leaf.advantage or 0.0 for leaf in own.pulls]  # type: ignore[union-attr]
    if max(advantages, default=0.0) - min(advantages, default=0.0) <= NOTHING:
        return "all images below have the same advantage, so none of them pulls"
    return "its images do not differ along their advantages"


def pulled(node: TreeNode) -> bool:
    """Whether a split is in the loss only by its distance to the starting model."""
    return node.pushed is not None and node.pushed.trained and not draws(node)


# --- the story -------------------------------------------------------------------------------------------------------


def lesson(given: Sums) -> Paragraph | None:
    """Which splits train and what the one of the longest direction asks for."""
    found = splits(given)
    if not train(given) or not found:
        return None
    active = [node for node in found if draws(node)]
    facts = [fact("Splits with a direction", f"{len(active)} of {len(found)}")]
    if active:
        own, first = _push(active[0]), active[0]
        length = f", {three(own.size)} in latent units" if known(own.size) else ""
        facts.append(fact("Longest direction, at", given.ref(first.id), f", noise level {level(own.sigma)}{length}"))
        for which, pick in (("towards", max), ("away from", min)):
            if own.pulls:
                end = pick(own.pulls, key=own.pulls.__getitem__)
                facts.append(fact(f"Furthest {which}", given.ref(end), f" ({share(own.pulls[end])})"))
    shown = next((node.id for node in active if _push(node).before and _push(node).aim), None)
    note = "" if shown is None else f"Shown: the prediction at {given.names[shown]}."
    return Paragraph("splits", TITLE, facts, TILT, note=note, strip=shown)


def moves(given: Sums) -> list[Fact]:
    """How many predictions went along their directions, and how far the one of the longest went."""
    active = [node for node in splits(given) if draws(node) and known(_push(node).cosine)]
    if not train(given):
        return []
    facts = [fact("What trains", "the splits; steps are only measured")]
    if active:
        along = sum(number(_push(node).cosine) > 0 for node in active)
        facts.append(fact("Predictions that moved along their direction", f"{along} of {len(active)}"))
        facts.append(fact("The longest direction, at", given.ref(active[0].id), f": moved {far(_push(active[0]))}"))
    return facts


def far(own: Push) -> str:
    """How far a prediction went, and how straight: "4.2 % of its length, cosine +0.54"."""
    if not known(own.moved):
        return "–"
    if not known(own.cosine) or not number(own.size):
        return f"{compact(number(own.moved))} in latent units"
    return f"{_percent(number(own.moved) / number(own.size))} of its length, cosine {_cosine(own)}"


# --- the panel -------------------------------------------------------------------------------------------------------


def pictures(node: TreeNode, address: Callable[[str], str]) -> list[tuple[str, str]]:
    """Label and address of the images before, aim and after that were kept."""
    files = [(which, getattr(node.pushed, which)) for which in PUSHED if node.pushed is not None]
    return [(which, address(file)) for which, file in files if file]


def split_panel(
    given: Sums,
    node: TreeNode,
    thumb: Callable[[str], str],
    whole: Callable[[str], str],
    still: Callable[[str], str | None] = lambda file: None,
) -> dict[str, Any] | None:
    """A JSON value for the panel of a node whose split could train; None of others.

    Args:
        given: the tree.
        node: which.
        thumb: address of a small still image of a file in the tree's folder.
        whole: address of the file itself.
        still: address of the first frame of a file that moves; None of others.
    """
    own = node.pushed
    if own is None:
        return None
    return {
        "shots": [
            {"label": label, "picture": whole(file), "still": still(file)}
            for label, file in pictures(node, lambda file: file)
        ],
        "says": _says(given, node),
        "trains": draws(node),
        "same": abs(own.sigma - node.sigma) < NOTHING,
        "facts": [list(fact) for fact in split_facts(node)],
        "ends": [
            {
                "id": leaf,
                "name": given.names[leaf],
                "thumb": thumb(file) if (file := given.record.nodes[leaf].picture) else None,
                "weight": share(own.pulls[leaf]),
                "way": push(own.pulls[leaf]),
            }
            for leaf in _ends(own)
        ],
        "more": max(0, len(own.pulls) - 2 * ENDS) if draws(node) else 0,
    }


def _ends(own: Push) -> list[int]:
    """The images that pull most, then those that push away most, in the order of their weights."""
    if not number(own.size):
        return []
    ranked = sorted(own.pulls, key=lambda leaf: -own.pulls[leaf])
    return ranked if len(ranked) <= 2 * ENDS else [*ranked[:ENDS], *ranked[-ENDS:]]


def _says(given: Sums, node: TreeNode) -> str:
    own = node.pushed
    if own is None:
        return ""
    if not draws(node):
        rest = "; it is only pulled to the starting model" if pulled(node) else ""
        return f"This split does not train: {why_not(given, node)}{rest}."
    times = "" if own.eta == 1 else f" {three(own.eta)} times"
    return (
        f"The aim is what is predicted here plus{times} the covariance of advantage and image below: towards the "
        "better images, away from the worse. The update only sets out that way; how far it came is told below."
    )


def split_facts(node: TreeNode) -> list[tuple[str, str]]:
    """Numbers of a split: its direction, what it is made of, and how far the prediction went."""
    own = _push(node)
    below = f"{counted(len(own.pulls), 'image')} of {counted(own.children, 'branch', 'branches')}"
    found = [("Splits at", f"noise level {level(own.sigma)}"), ("Compared", below)]
    if draws(node):
        found.append(("Length of the direction", f"{three(own.size)} in latent units"))
    if known(own.moved):
        found.append(("The update moved it", far(own)))
    return found


def _cosine(own: Push) -> str:
    return share(own.cosine)


def _percent(part: float) -> str:
    return f"{100 * part:.{0 if part >= 0.1 else 1}f} %"


def _push(node: TreeNode) -> Push:
    assert node.pushed is not None
    return node.pushed


def rows(given: Sums) -> Sequence[dict[str, Any]]:
    """All splits as a table, the longest direction first."""
    return [
        {
            "id": node.id,
            "name": given.names[node.id],
            "noise": level(_push(node).sigma),
            "compared": dict(split_facts(node))["Compared"],
            "size": three(_push(node).size),
            "trained": "yes" if draws(node) else "only pulled to the starting model" if pulled(node) else "no",
            "moved": _percent(number(_push(node).moved) / number(_push(node).size))
            if draws(node) and known(_push(node).moved) and number(_push(node).size)
            else "–",
            "cosine": _cosine(_push(node)) if known(_push(node).cosine) else "–",
            "why": why_not(given, node),
        }
        for node in splits(given)
    ]
