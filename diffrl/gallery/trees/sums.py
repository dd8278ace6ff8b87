"""How an advantage, and a reward, came about: the sum itself, with the numbers that training recorded.

Centre and spread of an advantage are the record's; nothing is shown of records that lack them.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffrl.gallery.trees.numbers import factor, known, number, share, three
from diffrl.gallery.trees.words import Sums
from diffrl.trees.record import TreeNode

NEAR = 0.005
"""Difference up to which a sum of rounded numbers comes to its advantage."""


def step_sum(given: Sums, node: TreeNode) -> str:
    """How the advantage of the step that ends in a node came about; "" where that was not recorded.

    "(+0.333 − 0.016) / 0.202, with the mean and deviation of this prompt's steps at this noise level"
    """
    rule = given.record.rule
    if rule.get("reward") == "outcome":
        pictures = len(given.usable_below(node))
        if not pictures or not known(node.advantage):
            return ""
        mean = "weighted mean" if rule.get("fusion") == "path_probability" else "mean"
        return "that of its image" if pictures == 1 else f"the {mean} of its {pictures} images' advantages"
    quotient = _quotient(given, node.credited, node.centre, node.spread, node.advantage)
    if not quotient:
        return ""
    level = "" if rule.get("normalise") == "group" else " at this noise level"
    among = f"this prompt's steps{level}"
    if rule.get("normalise") != "siblings":
        return f"{quotient}, with the {_baseline(given)} and {_deviation(given)} of {among}"
    above = given.parent(node)
    start = f", less the worth of {given.names[above.id]}" if above is not None and node.centre else ""
    return f"{quotient}{start}, over the deviation of {among}"


def sample_sum(given: Sums, node: TreeNode) -> str:
    """The same of an image's own advantage, from the rewards of its prompt's images."""
    leaf = node.leaf
    quotient = "" if leaf is None else _quotient(given, leaf.total, leaf.centre, leaf.spread, leaf.advantage, False)
    if not quotient:
        return ""
    whose = "all prompts'" if given.record.rule.get("std") == "batch" else "their"
    return f"{quotient}, with the {_baseline(given)} of this prompt's images and {whose} {_deviation(given)}"


def reward_sum(given: Sums, node: TreeNode) -> str:
    """How an image's reward is made of its scores: "0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"."""
    leaf, terms, total = node.leaf, "", 0.0
    used = {name: scaling for name, scaling in given.record.weights.items() if scaling["weight"] != 0}
    if leaf is None or not known(leaf.total) or not used:
        return ""
    for name, scaling in used.items():
        raw, scale = leaf.rewards.get(name), scaling["scale"]
        if raw is None or not known(raw) or scale == 0:
            return ""
        total += scaling["weight"] * (raw - scaling["shift"]) / scale
        terms += _term(scaling, three(raw), bool(terms)) + f" ({name})"
    plain = len(used) == 1 and terms.startswith(three(raw))
    near = abs(total - (leaf.total or 0.0)) <= 5e-4 * max(1.0, abs(total))
    return terms if near and not plain else ""


def weights_text(given: Sums) -> str:
    """How rewards make up the total, in names: "0.5 × shapes + 0.5 × shapes_strict"."""
    text = ""
    for name, scaling in given.record.weights.items():
        if scaling["weight"] != 0:
            text += _term(scaling, name, bool(text))
    return text


def _term(scaling: Mapping[str, float], what: str, more: bool) -> str:
    """A summand, its sign before it where there is something to add it to or it is negative."""
    weight, shift, scale = (scaling[key] for key in ("weight", "shift", "scale"))
    inner = what if shift == 0 else f"({what} {'−' if shift > 0 else '+'} {factor(abs(shift))})"
    size = "" if abs(weight) == 1 else f"{factor(abs(weight))} × "
    over = "" if scale == 1 else f" / {factor(scale)}"
    sign = (" − " if weight < 0 else " + ") if more else "−" if weight < 0 else ""
    return f"{sign}{size}{inner}{over}"


def _baseline(given: Sums) -> str:
    return "median" if given.record.rule.get("baseline") == "median" else "mean"


def _deviation(given: Sums) -> str:
    return "median deviation" if given.record.rule.get("std") == "mad" else "deviation"


def _quotient(
    given: Sums,
    value: float | None,
    centre: float | None,
    spread: float | None,
    advantage: float | None,
    sign: bool = True,
) -> str:
    """(value − centre) / spread as recorded, with digits enough to check it; "" where one of them was not."""
    if value is None or centre is None or not spread or advantage is None:
        return ""
    clamp = number(given.record.rule.get("clamp"))
    is_cut = clamp > 0 and abs(advantage) >= clamp * (1 - 1e-6)
    text = ""
    for digits in range(3, 7):
        shown = round(value, digits), round(centre, digits), round(spread, digits)
        text = _written(shown, digits, sign)
        quotient = (shown[0] - shown[1]) / shown[2] if shown[2] else 0.0
        if abs(quotient) >= clamp - NEAR if is_cut else shown[2] and abs(quotient - advantage) <= NEAR:
            break
    return f"{text}, cut to {share(advantage)}" if is_cut else text


def _written(shown: tuple[float, float, float], digits: int, sign: bool) -> str:
    value, centre, spread = shown
    first = ("+" if sign and value > 0 else "−" if value < 0 else "") + f"{abs(value):.{digits}f}"
    return f"({first} {'+' if centre < 0 else '−'} {abs(centre):.{digits}f}) / {spread:.{digits}f}"
