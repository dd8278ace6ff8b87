"""The paragraph on the decision that mattered most: the split whose branches differ most in value."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.trees.numbers import NOTHING, known, level, push, share, three
from diffrl.gallery.trees.sentences import Paragraph, Ref, Sentence, sentence
from diffrl.gallery.trees.splits import draws, train, weight, why_not
from diffrl.gallery.trees.words import Sums, pushed, skipped, total
from diffrl.trees.record import TreeNode

MOST = 3
"""How many parts of a reward a sentence names."""
LACK = 0.01
"""Difference in a part of a reward that is worth a word."""
ALIKE = 0.05
"""Share of the largest difference up to which another split has mattered as much."""
TITLE = "Which decision mattered most"
FIRST = "count"
"""The part that is named first: an object that was not found is wrong in the other parts as well."""
PUSHES = "The update pushes towards"
LEFT_OUT = "A guard left the update out: it pushed towards neither."
MANY = {2: "Two", 3: "Three", 4: "Four", 5: "Five"}
Split = tuple[Sequence[TreeNode], TreeNode]
"""Branches with a value, best first, and the node where they part."""


def decision(given: Sums) -> Paragraph | None:
    """The split whose branches differ most in value; nearly equal ones in order, the earliest, which decides for most.

    Pictures that stand for it: the best of its better branch and the worst of its worse one.
    """
    splits = [(worth, node) for node, worth in ((node, _siblings(given, node)) for node in given.record.nodes) if worth]
    if not splits:
        return None
    largest = max(_gap(worth) for worth, _ in splits)
    if largest <= NOTHING:
        nothing = "None: wherever a path split, its branches were worth the same."
        return Paragraph("decision", TITLE, [sentence(nothing)])
    near = [split for split in splits if _gap(split[0]) >= (1 - ALIKE) * largest]
    near.sort(key=lambda split: (split[0][0].step or 0, -len(given.usable_below(split[1])), -_asked(split[0])))
    told = _several(given, near) if len(near) > 1 else _one(given, *near[0], alone=len(splits) == 1)
    best, worst = near[0][0][0], near[0][0][-1]
    shown, note = _pictured(given, best, worst)
    return Paragraph("decision", TITLE, [*told, *_noises(given)], shown, note)


def _one(given: Sums, worth: Sequence[TreeNode], node: TreeNode, alone: bool) -> list[Sentence]:
    """The split that made the largest difference, what its worst branch lacks, and what the update makes of it."""
    best, worst = worth[0], worth[-1]
    start = "the starting noise " if node.parent is None else "the half-finished picture "
    one, other = ("one branch", "the other") if len(worth) == 2 else (f"the best of {len(worth)} branches", "the worst")
    split = sentence(
        f"The split at noise level {level(given.record.sigmas[best.step or 0])}: from {start}",
        Ref(node.id, given.names[node.id]), f", {one}, ",
        Ref(best.id, given.names[best.id]), f", {_ended(given, best)} {three(best.value)} and {other}, ",
        Ref(worst.id, given.names[worst.id]), f", at {three(worst.value)}",
        "." if alone else ". No other split made as large a difference in reward.",
    )  # fmt: skip
    lacks = lacking(given, best, worst)
    return [
        split,
        *([sentence(f"What the second lacks: {lacks}.")] if lacks else []),
        sentence(_consequence(given, best, worst)),
    ]


def _several(given: Sums, near: Sequence[Split]) -> list[Sentence]:
    """Splits that made (nearly) the same difference: the first two by name, and how many more there are."""
    pairs, more = [(worth[0], worth[-1]) for worth, _ in near[:2]], len(near) - 2
    gaps = [_gap(worth) for worth, _ in near]
    sizes = list(dict.fromkeys(map(three, sorted(gaps) if more else gaps)))
    alike = f" difference in reward, {sizes[0]} each" if len(sizes) == 1 else f" differences in reward, {sizes[0]}"
    alike += "" if len(sizes) == 1 else f" {'to' if more else 'and'} {sizes[-1]}"
    (best, worst), (second, last) = pairs
    told = sentence(
        f"{MANY.get(len(near), len(near))} splits made the largest{alike}: ",
        Ref(best.id, given.names[best.id]), " against ", Ref(worst.id, given.names[worst.id]),
        ", " if more else ", and ",
        Ref(second.id, given.names[second.id]), " against ", Ref(last.id, given.names[last.id]),
        f", and {more} more." if more else ".",
    )  # fmt: skip
    lacks = {given.names[worse.id]: lacking(given, better, worse) for better, worse in pairs}
    if len(set(lacks.values())) == 1:
        lacks = {" and ".join(lacks): lacks[given.names[worst.id]]}
    verb = "lacks" if len(lacks) > 1 else "lack"
    said = [sentence(f"What {name} {verb}: {parts}.") for name, parts in lacks.items() if parts]
    return [told, *said, *_consequences(given, pairs)]


def _consequences(given: Sums, pairs: Sequence[tuple[TreeNode, TreeNode]]) -> list[Sentence]:
    """What the update makes of several splits; one sentence where it goes the same way at all of them."""
    names = [(given.names[best.id], given.names[worst.id]) for best, worst in pairs]
    told = [_consequence(given, *pair, both) for pair, both in zip(pairs, names, strict=True)]
    if all(text.startswith(PUSHES) for text in told):
        better, worse = (" and ".join(side) for side in zip(*names, strict=True))
        told = [f"{PUSHES} {better}, and away from {worse}."]
    return [sentence(text) for text in dict.fromkeys(told)]


def _pictured(given: Sums, best: TreeNode, worst: TreeNode) -> tuple[list[int], str]:
    """Finished pictures that stand for two branches, and which ones they are where a branch has several.

    What is predicted at an early split is a guess, and may look the other way round.
    """
    above, below = given.usable_below(best), given.usable_below(worst)
    if not above or not below:
        return [], ""
    shown = [min(above, key=lambda leaf: (-total(leaf), leaf.id)), min(below, key=lambda leaf: (total(leaf), leaf.id))]
    kinds = [
        f"the {which} picture of {given.names[node.id]}" if len(found) > 1 else f"the picture of {given.names[node.id]}"
        for which, node, found in (("best", best, above), ("worst", worst, below))
    ]
    several = len(above) > 1 or len(below) > 1
    return [leaf.id for leaf in shown], f"Shown: {kinds[0]} and {kinds[1]}." if several else ""


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
    largest = sorted((name for name in gaps if gaps[name] > LACK), key=lambda name: (name != FIRST, -gaps[name]))
    told = [f"{name} ({three(second[name])} against {three(first[name])})" for name in largest[:MOST]]
    more = len(largest) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")


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


def _drawn(given: Sums, best: TreeNode, worst: TreeNode, first: str, second: str) -> str:
    """The same where splits train: by the weights of the two branches in the direction."""
    above, towards, away = given.parent(best), weight(given, best), weight(given, worst)
    if not draws(above):
        why = why_not(given, above) if above is not None else ""
        return f"That split does not train{f': {why}' if why else ''}."
    if _left_out(given):
        return LEFT_OUT
    if push(towards) > 0 > push(away):
        return f"{PUSHES} {first} and away from {second}."
    return f"In the direction of the split they weigh {share(towards)} and {share(away)}; the update goes by these."


def _left_out(given: Sums) -> bool:
    """Whether a guard left out every update."""
    out, updates = skipped(given.record)
    return bool(out) and out >= updates


def _consequence(given: Sums, best: TreeNode, worst: TreeNode, names: tuple[str, str] | None = None) -> str:
    """What the update makes of a split; its branches are "the first" and "the second" where they have no names."""
    first, second = names or ("the first", "the second")
    if train(given):
        return _drawn(given, best, worst, first, second)
    steps = f"the steps to {first} and {second}" if names else "the two steps"
    if not pushed(best) and not pushed(worst):
        pulls = given.pulled(best) and given.pulled(worst)
        return f"Neither of {steps} {'is pushed' if pulls else 'trains'}."
    if not pushed(best) or not pushed(worst):
        verb = "is pushed" if given.pulled(best) or given.pulled(worst) else "trains"
        return f"Of {steps} only the one to {first if pushed(best) else second} {verb}."
    if _left_out(given):
        return LEFT_OUT
    if push(best.advantage) > 0 > push(worst.advantage):
        return f"{PUSHES} {first} and away from {second}."
    credits = f"{share(best.advantage)} and {share(worst.advantage)}"
    those = f"those to {first} and {second}" if names else "the two"
    return f"Compared with the prompt's other steps {those} have advantages of {credits}; the update goes by these."
