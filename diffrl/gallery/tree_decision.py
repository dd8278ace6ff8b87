"""The paragraph on the decision that mattered most: the split whose branches differ most in value."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.tree_numbers import NOTHING, known, level, push, share, three
from diffrl.gallery.tree_sentences import Paragraph, Ref, Sentence, sentence
from diffrl.gallery.tree_words import Sums, pushed, skipped
from diffrl.tracking.trees import TreeNode

MOST = 3
"""How many parts of a reward a sentence names."""
LACK = 0.01
"""Difference in a part of a reward that is worth a word."""
ALIKE = 0.05
"""Share of the largest difference up to which another split has mattered as much."""
TITLE = "Which decision mattered most"


def decision(given: Sums) -> Paragraph | None:
    """The split whose branches differ most in value; among nearly equal ones the earliest, which decides for most."""
    splits = [(worth, node) for node, worth in ((node, _siblings(given, node)) for node in given.record.nodes) if worth]
    if not splits:
        return None
    largest = max(_gap(worth) for worth, _ in splits)
    if largest <= NOTHING:
        nothing = "None: wherever a path split, its branches were worth the same."
        return Paragraph("decision", TITLE, [sentence(nothing)])
    near = [split for split in splits if _gap(split[0]) >= (1 - ALIKE) * largest]
    near.sort(key=lambda split: (split[0][0].step or 0, -len(given.usable_below(split[1])), -_asked(split[0])))
    (worth, node), others = near[0], near[1:]
    best, worst = worth[0], worth[-1]
    told = [
        _split(given, node, worth),
        *([sentence(lacks)] if (lacks := lacking(given, best, worst)) else []),
        sentence(_consequence(given, best, worst)),
        *_second(given, others),
        *_noises(given),
    ]
    return Paragraph("decision", TITLE, told, [best.id, worst.id])


def _split(given: Sums, node: TreeNode, worth: Sequence[TreeNode]) -> Sentence:
    best, worst = worth[0], worth[-1]
    start = "the starting noise " if node.parent is None else "the half-finished picture "
    one, other = ("one branch", "the other") if len(worth) == 2 else (f"the best of {len(worth)} branches", "the worst")
    return sentence(
        f"The split at noise level {level(given.record.sigmas[best.step or 0])}: from {start}",
        Ref(node.id, given.names[node.id]), f", {one}, ",
        Ref(best.id, given.names[best.id]), f", {_ended(given, best)} {three(best.value)} and {other}, ",
        Ref(worst.id, given.names[worst.id]), f", at {three(worst.value)}.",
    )  # fmt: skip


def _second(given: Sums, others: Sequence[tuple[Sequence[TreeNode], TreeNode]]) -> list[Sentence]:
    """The next of those that mattered as much, and how many more there are."""
    if not others:
        return []
    (worth, node), more = others[0], len(others) - 1
    best, worst = worth[0], worth[-1]
    rest = "" if not more else f", and so did {more} more" if more > 1 else ", and so did one more"
    told = sentence(
        "The split from ", Ref(node.id, given.names[node.id]), " mattered as much (",
        Ref(best.id, given.names[best.id]), f" {three(best.value)}, ",
        Ref(worst.id, given.names[worst.id]), f" {three(worst.value)}){rest}.",
    )  # fmt: skip
    lacks = lacking(given, best, worst).replace("What the second lacks", f"What {given.names[worst.id]} lacks")
    return [told, *([sentence(lacks)] if lacks else [])]


def _noises(given: Sums) -> list[Sentence]:
    """That starting noises differ too, where no step has credit for it."""
    roots = [root for root in given.record.nodes if root.parent is None and root.drawn and known(root.value)]
    if len(roots) < 2 or given.record.rule.get("reward") not in ("incremental", "turning_point"):
        return []
    roots.sort(key=lambda root: -(root.value or 0.0))
    if roots[0].value == roots[-1].value:
        return []
    return [
        sentence(
            "The starting noises differ too: ", Ref(roots[0].id, given.names[roots[0].id]),
            f" is worth {three(roots[0].value)} and ", Ref(roots[-1].id, given.names[roots[-1].id]),
            f" {three(roots[-1].value)}. They are drawn at random, so no step gets credit for that.",
        )
    ]  # fmt: skip


def lacking(given: Sums, best: TreeNode, worst: TreeNode) -> str:
    """What the pictures below one branch lack against the other's, by the parts of their rewards; "" if nothing."""
    first, second = given.parts_below(best), given.parts_below(worst)
    gaps = {name: first[name] - second[name] for name in first if name in second}
    largest = sorted((name for name in gaps if gaps[name] > LACK), key=lambda name: -gaps[name])[:MOST]
    told = [f"{name} ({three(second[name])} against {three(first[name])})" for name in largest]
    return f"What the second lacks: {', '.join(told)}." if told else ""


def _siblings(given: Sums, node: TreeNode) -> list[TreeNode]:
    """Children with a value, best first; [] where fewer than two have one."""
    below = [given.record.nodes[child] for child in given.children.get(node.id, ())]
    below = [child for child in below if child.drawn and known(child.value)]
    return sorted(below, key=lambda child: -(child.value or 0.0)) if len(below) > 1 else []


def _gap(worth: Sequence[TreeNode]) -> float:
    return (worth[0].value or 0.0) - (worth[-1].value or 0.0)


def _asked(worth: Sequence[TreeNode]) -> float:
    """How far apart the advantages of the best and the worst are: among equal gaps, the one that is pushed hardest."""
    return abs((worth[0].advantage or 0.0) - (worth[-1].advantage or 0.0))


def _ended(given: Sums, node: TreeNode) -> str:
    if node.leaf is not None:
        return "ended at"
    if given.record.rule.get("value", "leaves") != "leaves":
        return "stood at"
    return "ended, on average, at" if len(given.usable_below(node)) > 1 else "ended at"


def _consequence(given: Sums, best: TreeNode, worst: TreeNode) -> str:
    if not pushed(best) and not pushed(worst):
        pulls = given.pulled(best) and given.pulled(worst)
        return f"Neither of the two steps {'is pushed' if pulls else 'trains'}."
    if not pushed(best) or not pushed(worst):
        verb = "is pushed" if given.pulled(best) or given.pulled(worst) else "trains"
        return f"Of the two steps only the one to the {'first' if pushed(best) else 'second'} {verb}."
    out, updates = skipped(given.record)
    if out and out >= updates:
        return "A guard left the update out: it pushed towards neither."
    if push(best.advantage) > 0 > push(worst.advantage):
        return "The update pushes towards the first and away from the second."
    credits = f"{share(best.advantage)} and {share(worst.advantage)}"
    return f"Compared with the prompt's other steps the two have advantages of {credits}; the update goes by these."
