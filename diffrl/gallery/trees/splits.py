"""Splits that train (tree tilt): what each asked of its prediction, what pulled and what pushed, and what came of it.

Everything here is read from the record; a branch's weight is the sum of its pictures' weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diffrl.gallery.trees.numbers import NOTHING, compact, counted, known, level, number, push, share, three
from diffrl.gallery.trees.sentences import Paragraph, Ref, Sentence, sentence
from diffrl.gallery.trees.words import Sums
from diffrl.trees.record import PUSHED, Push, TreeNode

TITLE = "What the splits teach"
ENDS = 5
"""How many pictures that pull, and how many that push away, a panel shows."""


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
    """Splits on the way to a picture, with its weight in the direction of each."""
    above = [node for node in given.path(leaf) if node.pushed is not None and leaf.id in node.pushed.pulls]
    return [(node, _push(node).pulls[leaf.id]) for node in above]


def why_not(given: Sums, node: TreeNode) -> str:
    """Why a split has no direction; "" where it has one."""
    own = node.pushed
    if own is None or draws(node):
        return ""
    if own.children < 2:
        return "fewer than two of its branches hold a picture that counts, which leaves nothing to compare"
    advantages = [given.record.nodes[leaf].leaf.advantage or 0.0 for leaf in own.pulls]  # type: ignore[union-attr]
    if max(advantages, default=0.0) - min(advantages, default=0.0) <= NOTHING:
        return "all pictures below have the same advantage, so none of them pulls"
    return "its pictures do not differ along their advantages"


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
    told = [
        sentence(
            "The splits train here, by tree tilt: at each, the predicted picture is drawn towards the better of the "
            "pictures below it and away from the worse."
        ),
        sentence(
            f"{len(active)} of {counted(len(found), 'split')} {'has' if len(active) == 1 else 'have'} a direction."
        ),
    ]
    if not active:
        return Paragraph("splits", TITLE, told)
    told.append(_longest(given, active[0]))
    shown = next((node.id for node in active if _push(node).before and _push(node).aim), None)
    note = "" if shown is None else f"Shown: the prediction at {given.names[shown]}."
    return Paragraph("splits", TITLE, told, note=note, strip=shown)


def _longest(given: Sums, node: TreeNode) -> Sentence:
    own = _push(node)
    ranked = sorted(own.pulls, key=lambda leaf: -own.pulls[leaf])
    which = "The direction is longest at " if len(splits(given)) > 1 else "Its direction, at "
    ends = [] if not ranked else [ranked[0]] if len(ranked) == 1 else [ranked[0], ranked[-1]]
    parts: list[str | Ref] = [which, Ref(node.id, given.names[node.id]), f" (noise level {level(own.sigma)}"]
    parts.append(f", {three(own.size)} in latent units)" if known(own.size) else ")")
    for leaf, words in zip(ends, (": furthest towards ", ", furthest away from "), strict=False):
        parts += [words, Ref(leaf, given.names[leaf]), f" ({share(own.pulls[leaf])})"]
    return sentence(*parts, ".")


def moves(given: Sums) -> list[Sentence]:
    """How many predictions went along their directions, how far the one of the longest went, and why not further."""
    active = [node for node in splits(given) if draws(node) and known(_push(node).cosine)]
    if not train(given):
        return []
    told = [sentence("The splits train here; the steps are only measured, not trained.")]
    if not active:
        return told
    along = sum(number(_push(node).cosine) > 0 for node in active)
    told.append(
        sentence(
            f"Of {counted(len(active), 'prediction')} with a direction {along} moved along it; the one at ",
            Ref(active[0].id, given.names[active[0].id]), f" went {far(_push(active[0]))}.",
        )
    )  # fmt: skip
    told.append(sentence("A direction is a way and no target: the learning rate says how far an update goes along it."))
    return told


def far(own: Push) -> str:
    """How far a prediction went, and how straight: "4.2 % of its length, cosine +0.54"."""
    if not known(own.moved):
        return "–"
    if not known(own.cosine) or not number(own.size):
        return f"{compact(number(own.moved))} in latent units"
    return f"{_percent(number(own.moved) / number(own.size))} of its length, cosine {_cosine(own)}"


def idle_splits(given: Sums, level_rewards: bool) -> list[str]:
    """Splits without a direction, by why.

    Args:
        given: the tree.
        level_rewards: it was said already that all rewards are equal.
    """
    count: dict[str, int] = {}
    for node in splits(given):
        if reason := why_not(given, node):
            count[reason] = count.get(reason, 0) + 1
    told = [] if level_rewards else [f"At {counted(n, 'split')} {reason}." for reason, n in count.items()]
    if n := sum(map(pulled, splits(given))):
        told.append(f"{counted(n, 'split')} {'is' if n == 1 else 'are'} only pulled to the starting model.")
    return [*told, "Steps and finished pictures do not train themselves with this objective: the splits do."]


# --- the panel -------------------------------------------------------------------------------------------------------


def pictures(node: TreeNode, address: Callable[[str], str]) -> list[tuple[str, str]]:
    """Label and address of the pictures before, aim and after that were kept."""
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
        thumb: address of a small still picture of a file in the tree's folder.
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
    """The pictures that pull most, then those that push away most, in the order of their weights."""
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
        f"The aim is what is predicted here plus{times} the covariance of advantage and picture below: towards the "
        "better pictures, away from the worse. The update only sets out that way; how far it came is told below."
    )


def split_facts(node: TreeNode) -> list[tuple[str, str]]:
    """Numbers of a split: its direction, what it is made of, and how far the prediction went."""
    own = _push(node)
    below = f"{counted(len(own.pulls), 'picture')} of {counted(own.children, 'branch', 'branches')}"
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
