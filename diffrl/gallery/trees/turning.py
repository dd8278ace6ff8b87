"""Turning points: the steps that training marked, what they are credited with and on whose paths (TP-GRPO)."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.trees.numbers import known, signed
from diffrl.gallery.trees.sentences import Ref, Sentence, joined, sentence
from diffrl.gallery.trees.words import Sums, pushed, total
from diffrl.trees.record import TreeNode

TURNS = 2
"""How many turning points are told one by one."""
FEW = 4
"""How many of a step's paths are named."""


def turning(given: Sums) -> list[Sentence]:
    """Turning points, the largest in detail, those that train before those that do not; then what they count for."""
    turns = [edge for edge in given.edges if edge.turning and known(given.step_reward(edge))]
    turns.sort(key=lambda edge: (not pushed(edge), -abs(given.step_reward(edge) or 0.0)))
    found = [_turn(given, edge) for edge in turns[:TURNS]]
    if len(turns) > TURNS:
        found.append(sentence(f"There are {len(turns)} turning points in all."))
    if turns:
        kept = "; as many turns up as down are kept, the largest ones" if given.record.rule.get("balance") else ""
        found.append(sentence(f"Where a path turns, a step counts as its whole way to the end{kept}."))
    return found


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
    """How many paths to pictures that count a step lies on."""
    return len(given.usable_below(edge))


def _turn(given: Sums, edge: TreeNode) -> Sentence:
    """What a turning point adds, what it is credited with, and the paths that turn there."""
    step, above = given.step_reward(edge) or 0.0, given.parent(edge)
    before = given.step_reward(above) if above is not None else None
    parts: list[str | Ref] = [Ref(edge.id, given.names[edge.id]), f" ◆ turns {'up' if step > 0 else 'down'}: "]
    parts.append(f"it adds {signed(step)} itself" + (f", after a step of {signed(before)}" if known(before) else ""))
    paths = paths_through(given, edge)
    if known(edge.credited):
        parts.append(f", and is credited with {signed(edge.credited)}" + (f", the mean of {paths} paths" * (paths > 1)))
    if not pushed(edge):
        parts.append(", but does not train here")
    for kept, words in ((True, ". To the end, from where it starts: "), (False, ". Turns that balancing dropped: ")):
        leaves = [leaf for leaf, own in (edge.turns or {}).items() if own == kept]
        parts += [words, *_ways(given, edge, leaves)] if leaves else []
    return sentence(*parts, ".")


def _ways(given: Sums, edge: TreeNode, leaves: Sequence[int]) -> Sequence[str | Ref]:
    """The first of some paths with what they come to from where a step starts, and how many more there are."""
    start, nodes = given.parent(edge), given.record.nodes
    named: list[Sentence] = []
    for leaf in leaves[:FEW]:
        whole = None if start is None or start.value is None else total(nodes[leaf]) - start.value
        named.append((Ref(leaf, given.names[leaf]), f" ({signed(whole)})"))
    return joined([*named, *([(f"{len(leaves) - FEW} more",)] if len(leaves) > FEW else [])])
