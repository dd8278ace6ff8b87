"""Turning points in words: the steps that were marked, and the rule by which they were (TP-GRPO, arXiv 2602.06422)."""

from __future__ import annotations

from diffrl.gallery.tree_numbers import known, signed
from diffrl.gallery.tree_sentences import Ref, Sentence, sentence
from diffrl.gallery.tree_words import Sums, pushed
from diffrl.tracking.trees import TreeNode

TURNS = 2
"""How many turning points are told one by one."""


def turning(given: Sums) -> list[Sentence]:
    """Turning points, the largest in detail, those that train before those that do not; then what they count for."""
    turns = [edge for edge in given.edges if edge.turning and known(given.step_reward(edge))]
    turns.sort(key=lambda edge: (not pushed(edge), -abs(given.step_reward(edge) or 0.0)))
    told = [_turn(given, edge) for edge in turns[:TURNS]]
    if len(turns) > TURNS:
        told.append(sentence(f"There are {len(turns)} turning points in all."))
    if turns:
        shared = any(paths_through(given, edge) > 1 for edge in turns)
        several = ", one that several paths share as the mean over them" if shared else ""
        kept = "; as many turns up as down are kept, the largest ones" if given.record.rule.get("balance") else ""
        told.append(sentence(f"Where a path turns, a step counts as its whole way to the end{several}{kept}."))
    return told


def rule(given: Sums) -> str:
    """The whole rule, as one entry of a glossary."""
    named = given.record.rule
    goes_on = ", and after which the path goes on in that direction" if named.get("constraint") else ""
    text = (
        "On the way to a picture, a first step, or one against the direction of the step before it, that goes in the "
        f"direction in which the whole path goes{goes_on}. On that path it counts as the whole way from there to the "
        "end instead of what it adds itself."
    )
    if named.get("balance"):
        text += " Of this prompt's turns as many up as down are kept: the smallest of the rest count as any other step."
    return f"{text} A step that several paths share gets the mean over its paths, of which only some may turn."


def paths_through(given: Sums, edge: TreeNode) -> int:
    """How many paths to pictures that count a step lies on."""
    return len(given.usable_below(edge))


def _turn(given: Sums, edge: TreeNode) -> Sentence:
    step, above = given.step_reward(edge) or 0.0, given.parent(edge)
    before = given.step_reward(above) if above is not None else None
    way, end = ("up", "higher") if step > 0 else ("down", "lower")
    first = "its first step" if before is None else f"after a step of {signed(before)} it"
    adds = f"{first} adds {signed(step)}"
    paths = paths_through(given, edge)
    whose = "" if paths <= 1 else f"at least one of the {paths} paths through it "
    goes = f"goes on {way}" if given.record.rule.get("constraint") else f"ends {end} than it began"
    counts = f", so the step is credited with {signed(edge.credited)} instead" if known(edge.credited) else ""
    idle = "" if pushed(edge) else ", but it does not train here"
    ref = Ref(edge.id, given.names[edge.id])
    return sentence("At ", ref, f" ◆ a path turns {way}: {adds} and {whose}{goes}{counts}{idle}.")
