"""Why the policy changed: what one tree's record says in tables of facts, and nothing that it does not.

Each function below fills one table, or none where there is nothing to tell.
"""

from __future__ import annotations

from diffrl.credit.rules import recorded_rule
from diffrl.gallery.trees.decision import deciding, decision
from diffrl.gallery.trees.drawn import drawn
from diffrl.gallery.trees.facts import Fact, Paragraph, fact, listed
from diffrl.gallery.trees.idle import idle
from diffrl.gallery.trees.numbers import NOTHING, known, level, push, share, three
from diffrl.gallery.trees.rule import SAMPLES_BY, rules
from diffrl.gallery.trees.splits import lesson, train
from diffrl.gallery.trees.turning import turning
from diffrl.gallery.trees.update import update
from diffrl.gallery.trees.words import Sums, sums, total
from diffrl.trees.record import TreeNode, TreeRecord

MOST = 3
"""How many steps a fact names."""
TURNS = "Where a path turns, a step counts as its whole way to the end."
RECKONED, TILTED = ("reward", "value", "fusion", "normalise"), ("objective", "nodes")
"""Keys of the rule that say how steps, and how splits, are credited; the whole rule has a table of its own."""


def story(record: TreeRecord) -> list[Paragraph]:
    """What was drawn, how it scored, what that says about the steps, and what the update made of it.

    Args:
        record: one prompt's tree.

    Returns:
        Tables in the order in which things happened; plain text with references to nodes.
    """
    given = sums(record)
    fill = (drawn, scored, decision, credit, contrast, lesson, update, idle, reckoning)
    filled = [paragraph(given) for paragraph in fill]
    return [paragraph for paragraph in filled if paragraph is not None and (paragraph.facts or paragraph.text)]


def opening(record: TreeRecord) -> str:
    """The tree in two short sentences: what was chosen of a pool, and the split, or the images, that mattered most."""
    given = sums(record)
    found, candidates = given.scored, len(given.leaves)
    words = f"{len(given.drawn_leaves)} of {candidates:,} candidates were generated again. " if record.explored else ""
    if not found:
        return f"{words}No image has a reward."
    best, worst = found[0], found[-1]
    if total(best) - total(worst) <= NOTHING:
        return f"{words}All {len(found)} images have the same reward, {three(total(best))}: nothing to tell apart."
    if split := deciding(given):
        node, above, below = split
        ends = " and ".join(f"{given.names[end.id]} {three(end.value)}" for end in (above, below))
        where = f"{given.names[node.id]}, noise level {level(record.sigmas[above.step or 0])}"
        return f"{words}The split at {where}, mattered most: its branches came to {ends}."
    ends = [f"{given.names[end.id]} with {three(total(end))}" for end in (best, worst)]
    return f"{words}The best image is {ends[0]}, the worst {ends[1]}."


def scored(given: Sums) -> Paragraph | None:
    """How many passed, the best and the worst, failures."""
    leaves, found = given.drawn_leaves, given.scored
    if not leaves:
        return None
    facts = [fact("Images with a reward", f"{len(found)} of {len(leaves)}")]
    if judged := [passed for node in leaves if (passed := given.passed(node)) is not None]:
        facts.append(fact(f"Passed {given.verdict}", f"{sum(judged)} of {len(judged)}"))
    if not found:
        return Paragraph("scored", "How it scored", facts)
    level = total(found[0]) - total(found[-1]) <= NOTHING
    if not level:
        for which, node in (("Best", found[0]), ("Worst", found[-1])):
            facts.append(fact(which, given.ref(node.id), f" ({three(total(node))})"))
    facts.append(fact("Reward of all" if level else "Mean reward", three(sum(map(total, found)) / len(found))))
    return Paragraph("scored", "How it scored", facts)


def credit(given: Sums) -> Paragraph | None:
    """The steps with the largest advantages, and turning points."""
    rule, edges = given.record.rule, given.edges
    if not edges or not rule.get("edges"):
        return None
    paths = rule.get("reward") == "outcome" and max(given.record.branching.values(), default=1) == 1
    if paths:  # the steps of a chain have the same credit: its image stands for all that train
        named = [leaf for leaf in given.drawn_leaves if any(edge.trained for edge in given.path(leaf))]
    else:
        named = [edge for edge in edges if edge.trained]
    facts: list[Fact] = []
    for way, where in ((1, "up"), (-1, "down")):
        ends = sorted((n for n in named if push(n.advantage) == way), key=lambda n: -way * (n.advantage or 0.0))[:MOST]
        if ends:
            label = f"{'Paths' if paths else 'Steps'} pushed {where} most, to"
            facts.append(fact(label, *listed([(given.ref(n.id), f" ({share(n.advantage)})") for n in ends])))
    turns = turning(given)
    return Paragraph("credit", "Which steps were pushed", facts + turns, TURNS if turns else "")


def reckoning(given: Sums) -> Paragraph | None:
    """By which rule steps, or splits, are credited."""
    if not train(given) and (not given.edges or not given.record.rule.get("edges")):
        return None
    turns = ("constraint", "balance") if recorded_rule(given.record.rule.get("reward")).by_turns else ()
    keys = TILTED if train(given) else (*RECKONED, *turns)
    return Paragraph(
        "reckoning", "How credit is given here", [fact(key, text) for key, text in rules(given) if key in keys]
    )


def contrast(given: Sums) -> Paragraph | None:
    """What finished images teach, where they train."""
    if not given.record.rule.get("samples"):
        return None
    trained = [node for node in given.drawn_leaves if node.leaf and node.leaf.trained and known(node.leaf.advantage)]
    facts: list[Fact] = []
    for way, where in ((1, "Drawn towards"), (-1, "Drawn away from")):
        own = [node for node in trained if push(_own(node)) == way]
        if own:
            far = max(own, key=lambda node: way * _own(node))
            facts.append(fact(where, f"{len(own)} images, furthest ", given.ref(far.id), f" ({share(_own(far))})"))
    if facts:
        name = str(given.record.rule.get("objective"))
        own = f"an objective of your own ({name})" if ":" in name else "contrast"
        facts.insert(0, fact("Images train by", SAMPLES_BY.get(name, own)))
    return Paragraph("contrast", "What the images teach", facts)


def _own(node: TreeNode) -> float:
    return (node.leaf.advantage if node.leaf else None) or 0.0
