"""The decision that mattered most: the split whose branches differ most in value."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.credit.rules import recorded_rule
from diffrl.gallery.trees.facts import Fact, Paragraph, fact
from diffrl.gallery.trees.numbers import NOTHING, known, level, push, share, three
from diffrl.gallery.trees.splits import asked, draws, train, why_not
from diffrl.gallery.trees.words import Sums, left_out, pushed, total
from diffrl.trees.record import TreeNode

Split = tuple[list[TreeNode], TreeNode]
"""Branches of a split, best first, and the node from which they grow."""
SPLITS = 2
"""How many splits are shown that mattered as much."""
MOST = 3
"""How many parts of a reward a fact names."""
LACK = 0.01
"""Difference in a part of a reward that is worth a word."""
ALIKE = 0.05
"""Share of the largest difference up to which another split has mattered as much."""
FIRST = "count"
"""The part that is named first: an object that was not found is wrong in the other parts as well."""
WAYS = {1: "pushed up", -1: "pushed down", 0: "pushed neither way"}


def decision(given: Sums) -> Paragraph | None:
    """The splits whose branches differ most in value; nearly equal ones in order, the earliest, which decides for most.

    Images that stand for the first: the best of its better branch and the worst of its worse one.
    """
    splits = [(worth, node) for node in given.record.nodes if (worth := _siblings(given, node))]
    if not splits:
        return None
    largest = max(_gap(worth) for worth, _ in splits)
    facts = [fact("Largest difference between branches", three(largest))]
    shown: list[int] = []
    note = ""
    if near := _largest(given, splits):
        facts.append(fact("Splits within 5 % of it", f"{len(near)} of {len(splits)}"))
        for worth, node in near[:SPLITS]:
            facts += _split(given, worth, node)
        shown, note = _pictured(given, near[0][0][0], near[0][0][-1])
    return Paragraph("decision", "Which decision mattered most", facts + _noises(given), shown=shown, note=note)


def deciding(given: Sums) -> tuple[TreeNode, TreeNode, TreeNode] | None:
    """The split that mattered most, its best and its worst branch; None where no branches differ."""
    splits = [(worth, node) for node in given.record.nodes if (worth := _siblings(given, node))]
    near = _largest(given, splits)
    return (near[0][1], near[0][0][0], near[0][0][-1]) if near else None


def _largest(given: Sums, splits: Sequence[Split]) -> list[Split]:
    """The splits that differ most, and those nearly as much; the earliest, which decides for most, first."""
    largest = max((_gap(worth) for worth, _ in splits), default=0.0)
    near = [split for split in splits if _gap(split[0]) >= (1 - ALIKE) * largest] if largest > NOTHING else []
    return sorted(
        near, key=lambda split: (split[0][0].step or 0, -len(given.usable_below(split[1])), -_apart(split[0]))
    )


def _split(given: Sums, worth: Sequence[TreeNode], node: TreeNode) -> list[Fact]:
    """Where a path split, what its best and its worst branch came to, and what the worst lacks."""
    best, worst, name = worth[0], worth[-1], given.names[node.id]
    where = (
        f", noise level {level(given.record.sigmas[best.step or 0])}, {len(worth)} branches {three(_gap(worth))} apart"
    )
    why = why_not(given, node)
    facts = [
        fact(f"Split at {name}", given.ref(node.id), f"{where}; does not train: {why}" if why else where),
        fact(f"Best branch of {name}", given.ref(best.id), _branch(given, best)),
        fact(f"Worst branch of {name}", given.ref(worst.id), _branch(given, worst)),
    ]
    if lacks := lacking(given, best, worst):
        facts.append(fact(f"What {given.names[worst.id]} lacks", lacks))
    return facts


def _branch(given: Sums, node: TreeNode) -> str:
    """What a branch is worth, its advantage (or weight in the direction), and whether the update pushed it."""
    own, teaches = asked(given, node), draws(given.parent(node)) if train(given) else pushed(node)
    what = f": worth {three(node.value)}, {'weight' if train(given) else 'advantage'} {share(own)}"
    if not teaches:
        return f"{what}, {'only pulled to the starting model' if given.pulled(node) else 'does not train'}"
    return f"{what}, {'left out by a guard' if left_out(given.record) else WAYS[push(own)]}"


def _pictured(given: Sums, best: TreeNode, worst: TreeNode) -> tuple[list[int], str]:
    """Finished images that stand for two branches, and which ones they are where a branch has several.

    What is predicted at an early split is a guess, and may look the other way round.
    """
    above, below = given.usable_below(best), given.usable_below(worst)
    if not above or not below:
        return [], ""
    shown = [min(above, key=lambda leaf: (-total(leaf), leaf.id)), min(below, key=lambda leaf: (total(leaf), leaf.id))]
    note = f"Shown: the best image of {given.names[best.id]} and the worst image of {given.names[worst.id]}."
    return [leaf.id for leaf in shown], note if len(above) > 1 or len(below) > 1 else ""


def _noises(given: Sums) -> list[Fact]:
    """The best and the worst starting noise, where no step has credit for their difference."""
    roots = [root for root in given.record.nodes if root.parent is None and root.drawn and known(root.value)]
    roots.sort(key=lambda root: -(root.value or 0.0))
    stepwise = recorded_rule(given.record.rule.get("reward")).differences
    if len(roots) < 2 or not stepwise or roots[0].value == roots[-1].value:
        return []
    ends = zip(("Best", "Worst"), (roots[0], roots[-1]), strict=True)
    return [
        fact(f"{which} starting noise (chance, no credit)", given.ref(root.id), f": worth {three(root.value)}")
        for which, root in ends
    ]


def lacking(given: Sums, best: TreeNode, worst: TreeNode) -> str:
    """What the images below one branch lack against the other's, by the parts of their rewards; "" if nothing."""
    first, second = given.parts_below(best), given.parts_below(worst)
    gaps = {name: first[name] - second[name] for name in first if name in second}
    largest = sorted((name for name in gaps if gaps[name] > LACK), key=lambda name: (name != FIRST, -gaps[name]))
    named = [f"{name} {three(second[name])} against {three(first[name])}" for name in largest[:MOST]]
    return ", ".join(named + ([f"{len(largest) - MOST} more"] if len(largest) > MOST else []))


def _siblings(given: Sums, node: TreeNode) -> list[TreeNode]:
    """Children with a value, best first; [] where fewer than two have one."""
    below = [given.record.nodes[child] for child in given.children.get(node.id, ())]
    below = [child for child in below if child.drawn and known(child.value)]
    return sorted(below, key=lambda child: -(child.value or 0.0)) if len(below) > 1 else []


def _gap(worth: Sequence[TreeNode]) -> float:
    return (worth[0].value or 0.0) - (worth[-1].value or 0.0)


def _apart(worth: Sequence[TreeNode]) -> float:
    """How far apart the advantages of the best and the worst are: among equal gaps, the one that is pushed hardest."""
    return abs((worth[0].advantage or 0.0) - (worth[-1].advantage or 0.0))
