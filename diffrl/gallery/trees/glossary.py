"""What the words on a tree's page mean, for those that it uses."""

from __future__ import annotations

from diffrl.gallery.trees.numbers import known, number
from diffrl.gallery.trees.rule import SAMPLES_BY, VALUE
from diffrl.gallery.trees.story import precision
from diffrl.gallery.trees.sums import sample_sum, step_sum
from diffrl.gallery.trees.view import TreeView
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
MISSING = " An object that is missing or too many counts as wrong in colour, shape and binding."
PROXY = "The reward of a candidate's image as the exploring stage made it; it only decides what is generated again."
AUDIT = "An image generated again at random to check how well the proxy reward ranks; it trains nothing."
GROUP = "The place of the prompt among those of the iteration, counted from 0."
MEANS = "shapes is the mean of its parts; shapes_strict is 1 if everything passes, else 0."
BETTER = "How much better than its comparison a step or an image did, in deviations"
LIKELIER = "; above 0 it is made more likely, below 0 less, even where it added something itself."
OWN = " A step and the image that it leads to have advantages of their own."
MEDIAN = "The median is the middle one of the numbers. "
DEVIATION = "The deviation tells how far numbers lie from their mean: it is the root of the mean squared distance. "
ROBUST = "The median deviation is the middle one of their distances from it. "
TURNING = (
    "A step that sets a path's direction: the path ends up (or down) overall, this step goes that way, as the first of "
    "the path or right after one against it{constraint}. On that path it counts as the whole way from there to the end "
    "instead of what it adds itself.{balance} A step that several paths share gets the mean over its paths, of which "
    "only some may turn."
)
CONSTRAINT = ", and the rest of the path goes on the same way"
BALANCE = " Of this prompt's turns as many up as down are kept: the smallest of the rest count as any other step."
SPLITS = {
    "direction": "How advantage and image vary together below a split (their covariance, in the numbers that the "
    "network computes with): where the images that did better than others differ from those that did worse. It is 0 "
    "where all did alike. Its length is the root of the mean square of these numbers. It is a way and no target: the "
    "learning rate says how far an update goes along it.",
    "weight": "How much an image has a part in a split's direction, by how much better it did than those of the other "
    "branches; a branch weighs as much as its images together. Above 0 the prediction moves towards it, below 0 away "
    "from it.",
    "aim": "The image that is predicted at the split, moved along the direction. To first order this is what the "
    "optimum of advantage under a KL leash of weight 1 would predict there.",
    "cosine": "How straight a prediction went: 1 is along the direction, 0 across it, −1 against it.",
}
CONTRAST = "It trains finished images: the network moves towards the better and away from the worse ones."
DIMENSION = "A step changes many numbers at once; the change of its log-likelihood is divided by how many there are."
TIMES = (
    " Times {:,} it is that of the whole step, and e to the power of that how many times as likely the update made "
    "exactly this step."
)


def glossary(view: TreeView) -> list[tuple[str, str]]:
    """Return words and a sentence each, in the order in which the story comes to them."""
    record, rule, edges = view.record, view.record.rule, view.edges
    leaves = [node.leaf for node in view.leaves if node.leaf]
    stage = record.explored or record.sampled_by or {}
    emulated = ": emulated means that the values are rounded to it and multiplied in a wider format"
    name = str(stage.get("precision"))
    meaning = PRECISIONS[name].meaning if name in PRECISIONS else ""
    what = "exploring stage" if record.explored else "copy that drew the images"
    stages = f"The {what} computed with {meaning}{emulated if stage.get('engine') == EMULATED else ''}."
    verdict = any(view.passed(node) is not None for node in view.sampled_leaves)
    credited = any(known(leaf.advantage) for leaf in leaves)
    per_step = edges and credited and rule.get("reward") != "outcome"  # there a step has its images' credit
    middle = str(rule.get("baseline", "mean"))
    robust = rule.get("std") == "mad"
    sums = any(sample_sum(view, n) for n in view.sampled_leaves) or any(step_sum(view, edge) for edge in edges)
    turning = TURNING.format(
        constraint=CONSTRAINT if rule.get("constraint") else "", balance=BALANCE if rule.get("balance") else ""
    )
    dimensions = round(number(rule.get("dimensions")))
    contrast = SAMPLES_BY.get(str(rule.get("objective")), "")
    words: list[tuple[str, str, object]] = [
        ("proxy reward", PROXY, any(known(leaf.proxy) for leaf in leaves)),
        (precision(stage), stages, meaning),
        ("audit", AUDIT, any(leaf.audit for leaf in leaves)),
        ("group", GROUP, not number(rule.get("prompts"))),
        ("passed", f"An image passes if its score {view.verdict} is 1, and does not if it is 0.", verdict),
        *_parts(view),
        ("value", f"What a node promises for the end: {VALUE.get(str(rule.get('value')), 'see value')}.", edges),
        ("advantage", f"{BETTER}{'.' if view.trains_splits else LIKELIER}{OWN if per_step else ''}", edges or credited),
        (
            f"{middle}, {'median deviation' if robust else 'deviation'}",
            f"{MEDIAN if middle != 'mean' else ''}{ROBUST if robust else DEVIATION}To divide by it, 0.0001 is added.",
            sums,
        ),
        ("turning point ◆", turning, any(edge.turning for edge in edges)),
        *((word, text, view.trains_splits) for word, text in SPLITS.items()),
        (contrast, CONTRAST, contrast),
        ("per dimension", DIMENSION + (TIMES.format(dimensions) if dimensions else ""),
         any(known(edge.log_ratio) for edge in edges)),
    ]  # fmt: skip
    return [(word, text) for word, text, is_used in words if is_used]


def _parts(view: TreeView) -> list[tuple[str, str, object]]:
    """Return what the shapes scorers measure, for those parts that the record has."""
    names = {name for node in view.sampled_leaves if node.leaf for name in node.leaf.rewards}
    parts = {name.partition("/")[2] for name in names if name.partition("/")[0] in SHAPES}
    meant = [f"{part}: {meaning}" for part, meaning in PARTS.items() if part in parts]
    return [
        ("parts", f"{'. '.join(meant)}.{MISSING if parts >= SHARES else ''}", meant),
        (", ".join(SHAPES), MEANS, names.issuperset(SHAPES)),
    ]
