"""Turning points: the steps that training marked, what they are credited with and on whose paths (TP-GRPO)."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.trees.facts import Fact, Parts, fact, listed
from diffrl.gallery.trees.numbers import known, signed
from diffrl.gallery.trees.words import Sums, pushed, total
from diffrl.trees.record import TreeNode

TURNS = 2
"""How many turning points are told one by one."""
FEW = 4
"""How many of a step's paths are named."""


def turning(given: Sums) -> list[Fact]:
    """How many turning points there are, and the largest in detail, those that train before those that do not."""
    turns = [edge for edge in given.edges if edge.turning and known(given.step_reward(edge))]
    turns.sort(key=lambda edge: (not pushed(edge), -abs(given.step_reward(edge) or 0.0)))
    dropped = sum(not kept for edge in given.edges for kept in (edge.turns or {}).values())
    counts = {"Turning points ◆": len(turns), "Turns that balancing dropped": dropped}
    facts = [fact(label, count) for label, count in counts.items() if count]
    return facts + [each for edge in turns[:TURNS] for each in _turn(given, edge)]


def rule(given: Sums) -> str:
    """The whole rule, as one entry of a glossary."""
    named = given.record.rule
    goes_on = ", and the rest of the path goes on the same way" if named.get("constraint") else ""
    text = (
        "A step that sets a path's direction: the path ends up (or down) overall, this step goes that way, as the "
        f"first of the path or right after one against it{goes_on}. On that path it counts as the whole way from "
        "there to the end instead of what it adds itself."
    )
    if named.get("balance"):
        text += " Of this prompt's turns as many up as down are kept: the smallest of the rest count as any other step."
    return f"{text} A step that several paths share gets the mean over its paths, of which only some may turn."


def paths_through(given: Sums, edge: TreeNode) -> int:
    """How many paths to images that count a step lies on."""
    return len(given.usable_below(edge))


def _turn(given: Sums, edge: TreeNode) -> list[Fact]:
    """What a turning point adds, what it is credited with, and the paths that turn there."""
    name, step, above = given.names[edge.id], given.step_reward(edge) or 0.0, given.parent(edge)
    before = given.step_reward(above) if above is not None else None
    words = [f"turns {'up' if step > 0 else 'down'}", f"adds {signed(step)}"]
    words += [f"the step before {signed(before)}"] if known(before) else []
    words += [f"credited {signed(edge.credited)}"] if known(edge.credited) else []
    words += [f"mean of {paths_through(given, edge)} paths"] if paths_through(given, edge) > 1 else []
    words += [] if pushed(edge) else ["does not train"]
    facts = [fact(f"◆ {name}", given.ref(edge.id), f": {', '.join(words)}")]
    for kept, label in ((True, "to the end from where it starts"), (False, "turns that balancing dropped")):
        leaves = [leaf for leaf, own in (edge.turns or {}).items() if own == kept]
        facts += [fact(f"◆ {name}, {label}", *_ways(given, edge, leaves))] if leaves else []
    return facts


def _ways(given: Sums, edge: TreeNode, leaves: Sequence[int]) -> Parts:
    """The first of some paths with what they come to from where a step starts, and how many more there are."""
    start, nodes = given.parent(edge), given.record.nodes
    named: list[Parts] = []
    for leaf in leaves[:FEW]:
        whole = None if start is None or start.value is None else total(nodes[leaf]) - start.value
        named.append((given.ref(leaf), f" ({signed(whole)})"))
    return listed([*named, *([(f"{len(leaves) - FEW} more",)] if len(leaves) > FEW else [])])
