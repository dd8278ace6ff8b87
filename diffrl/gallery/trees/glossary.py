"""What the words on a tree's page mean, for those that it uses."""

from __future__ import annotations

from diffrl.gallery.trees.drawn import precision
from diffrl.gallery.trees.numbers import known, number
from diffrl.gallery.trees.rule import SAMPLES_BY, VALUE
from diffrl.gallery.trees.splits import train
from diffrl.gallery.trees.sums import sample_sum, step_sum
from diffrl.gallery.trees.turning import rule as turning_rule
from diffrl.gallery.trees.words import Sums
from diffrl.precision.facts import EMULATED
from diffrl.precision.formats import PRECISIONS

PARTS = {
    "count": "how near the number of objects found is to the number asked for; objects of a colour that touch are one",
    "colour": "how well the objects' colours fit the asked ones against the others",
    "shape": "how well their outlines fit the asked ones against the others",
    "size": "how clearly they are small or large, where that was asked for",
    "binding": "the product of the three, of each object",
    "relation": "how clearly the objects lie as asked, where anything was asked",
    "clean": "how little is wrong with the background, or lies on it",
    "partial": "the mean of those that apply",
    "strict": "1 if all of them are 1, else 0",
}
"""Parts of the shapes scorers' scores, which see the same things."""
SHAPES = ("shapes", "shapes_strict")
SHARES = {"colour", "shape", "binding"}


def glossary(given: Sums) -> list[tuple[str, str]]:
    """Words and a sentence each, in the order in which the story comes to them."""
    record, rule = given.record, given.record.rule
    explored = record.explored or {}
    found: list[tuple[str, str]] = []
    if any(node.leaf and known(node.leaf.proxy) for node in given.leaves):
        text = (
            "The reward of a candidate's image as the exploring stage made it; it only decides what is generated again."
        )
        found.append(("proxy reward", text))
    if (name := str(explored.get("precision"))) in PRECISIONS:
        emulated = explored.get("engine") == EMULATED
        also = ": emulated means that the values are rounded to it and multiplied in a wider format" if emulated else ""
        found.append((precision(explored), f"The exploring stage computed with {PRECISIONS[name].meaning}{also}."))
    if any(node.leaf and node.leaf.audit for node in given.leaves):
        found.append(
            ("audit", "An image generated again at random to check how well the proxy reward ranks; it trains nothing.")
        )
    if not number(rule.get("prompts")):
        found.append(("group", "The place of the prompt among those of the iteration, counted from 0."))
    if given.verdict and any(given.passed(node) is not None for node in given.drawn_leaves):
        found.append(("passed", f"An image passes if its score {given.verdict} is 1, and does not if it is 0."))
    return found + _parts(given) + _credit(given) + _splits(given) + _update(given)


def _parts(given: Sums) -> list[tuple[str, str]]:
    """What the shapes scorers measure, for those parts that the record has."""
    names = {name for node in given.drawn_leaves if node.leaf for name in node.leaf.rewards}
    parts = {name.partition("/")[2] for name in names if name.partition("/")[0] in SHAPES}
    found, meant = [], [f"{part}: {meaning}" for part, meaning in PARTS.items() if part in parts]
    if meant:
        missing = " An object that is missing or too many counts as wrong in colour, shape and binding."
        found.append(("parts", f"{'. '.join(meant)}.{missing if parts >= SHARES else ''}"))
    if names.issuperset(SHAPES):
        text = "shapes is the mean of its parts; shapes_strict is 1 if everything passes, else 0."
        found.append(("shapes, shapes_strict", text))
    return found


def _credit(given: Sums) -> list[tuple[str, str]]:
    """Worth, advantages and what they are made of."""
    edges, rule, found = given.edges, given.record.rule, []
    if edges:
        found.append(("worth", f"What a node promises for the end: {VALUE.get(str(rule.get('value')), 'see value')}."))
    pictures = any(node.leaf and known(node.leaf.advantage) for node in given.leaves)
    if edges or pictures:
        both = edges and pictures and rule.get("reward") != "outcome"  # there a step has its images' credit
        own = " A step and the image that it leads to have advantages of their own." if both else ""
        text = "How much better than its comparison a step or an image did, in deviations"
        likely = "; above 0 it is made more likely, below 0 less, even where it added something itself."
        found.append(("advantage", f"{text}.{own}" if train(given) else f"{text}{likely}{own}"))
    centre = str(rule.get("baseline", "mean"))
    if any(sample_sum(given, node) for node in given.drawn_leaves) or any(step_sum(given, edge) for edge in edges):
        middle = "" if centre == "mean" else "The median is the middle one of the numbers. "
        text = "The deviation tells how far numbers lie from their mean: it is the root of the mean squared distance. "
        if robust := rule.get("std") == "mad":
            text = "The median deviation is the middle one of their distances from it. "
        deviation = "median deviation" if robust else "deviation"
        found.append((f"{centre}, {deviation}", f"{middle}{text}To divide by it, 0.0001 is added."))
    if any(edge.turning for edge in edges):
        found.append(("turning point ◆", turning_rule(given)))
    return found


def _splits(given: Sums) -> list[tuple[str, str]]:
    """What splits train on, where they do."""
    if not train(given):
        return []
    direction = (
        "How advantage and image vary together below a split (their covariance, in the numbers that the network "
        "computes with): where the images that did better than others differ from those that did worse. It is 0 where "
        "all did alike. Its length is the root of the mean square of these numbers. It is a way and no target: the "
        "learning rate says how far an update goes along it."
    )
    weight = (
        "How much an image has a part in a split's direction, by how much better it did than those of the other "
        "branches; a branch weighs as much as its images together. Above 0 the prediction is drawn to it, below 0 "
        "away from it."
    )
    aim = (
        "The image that is predicted at the split, moved along the direction. To first order this is what the "
        "optimum of advantage under a KL leash of weight 1 would predict there."
    )
    cosine = "How straight a prediction went: 1 is along the direction, 0 across it, −1 against it."
    return [("direction", direction), ("weight", weight), ("aim", aim), ("cosine", cosine)]


def _update(given: Sums) -> list[tuple[str, str]]:
    """What the update did it with, and how that is told."""
    rule, found = given.record.rule, []
    if name := SAMPLES_BY.get(str(rule.get("objective"))):
        text = "It trains finished images: the network is drawn towards the better and away from the worse ones."
        found.append((name, text))
    if any(known(edge.log_ratio) for edge in given.edges):
        text = "A step changes many numbers at once; the change of its log-likelihood is divided by how many there are."
        if count := round(number(rule.get("dimensions"))):
            text += f" Times {count:,} it is that of the whole step, and e to the power of that how many times as "
            text += "likely the update made exactly this step."
        found.append(("per dimension", text))
    return found
