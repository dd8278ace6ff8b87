"""How an advantage, and a reward, came about: the sum itself, with the numbers that training recorded.

Centre and spread of an advantage are the record's; nothing is shown of records that lack them.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffrl.gallery.trees.numbers import factor, known, number, share, three
from diffrl.gallery.trees.view import TreeView
from diffrl.trees.record import TreeLeaf, TreeNode

NEAR = 0.005
"""Difference up to which a sum of rounded numbers comes to its advantage."""


def step_sum(view: TreeView, node: TreeNode) -> str:
    """Return how the advantage of the step that ends in a node came about; "" where that was not recorded.

    "(+0.333 − 0.016) / 0.202, with the mean and deviation of this prompt's steps at this noise level"
    """
    rule = view.record.rule
    if rule.get("reward") == "outcome":
        images = len(view.usable_below(node))
        if not images or not known(node.advantage):
            return ""
        mean = "weighted mean" if rule.get("fusion") == "path_probability" else "mean"
        return "that of its image" if images == 1 else f"the {mean} of its {images} images' advantages"
    quotient = _quotient(view, node.credited, node, signed=True)
    if not quotient:
        return ""
    among = "this prompt's steps" + ("" if rule.get("normalise") == "group" else " at this noise level")
    if rule.get("normalise") != "siblings":
        return f"{quotient}, with the {_baseline(view)} and {_deviation(view)} of {among}"
    above = view.parent(node)
    start = f", less the value of {view.names[above.id]}" if above is not None and node.centre else ""
    return f"{quotient}{start}, over the deviation of {among}"


def sample_sum(view: TreeView, node: TreeNode) -> str:
    """Return the same of an image's own advantage, from the rewards of its prompt's images."""
    quotient = "" if node.leaf is None else _quotient(view, node.leaf.total, node.leaf, signed=False)
    if not quotient:
        return ""
    whose = "all prompts'" if view.record.rule.get("std") == "batch" else "their"
    return f"{quotient}, with the {_baseline(view)} of this prompt's images and {whose} {_deviation(view)}"


def reward_sum(view: TreeView, node: TreeNode) -> str:
    """Return how an image's reward is made of its scores: "0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"."""
    leaf, terms, total = node.leaf, "", 0.0
    used = {name: scaling for name, scaling in view.record.weights.items() if scaling["weight"] != 0}
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


def weights_text(view: TreeView) -> str:
    """Return how rewards make up the total, in names: "0.5 × shapes + 0.5 × shapes_strict"."""
    text = ""
    for name, scaling in view.record.weights.items():
        if scaling["weight"] != 0:
            text += _term(scaling, name, bool(text))
    return text


def _term(scaling: Mapping[str, float], what: str, more: bool) -> str:
    """Return a summand, its sign before it where there is something to add it to or it is negative."""
    weight, shift, scale = (scaling[key] for key in ("weight", "shift", "scale"))
    minus = "−" if shift > 0 else "+"
    inner = what if shift == 0 else f"({what} {minus} {factor(abs(shift))})"
    size = "" if abs(weight) == 1 else f"{factor(abs(weight))} × "
    over = "" if scale == 1 else f" / {factor(scale)}"
    if more:
        return f"{' − ' if weight < 0 else ' + '}{size}{inner}{over}"
    return f"{'−' if weight < 0 else ''}{size}{inner}{over}"


def _baseline(view: TreeView) -> str:
    return "median" if view.record.rule.get("baseline") == "median" else "mean"


def _deviation(view: TreeView) -> str:
    return "median deviation" if view.record.rule.get("std") == "mad" else "deviation"


def _quotient(view: TreeView, value: float | None, of: TreeNode | TreeLeaf, signed: bool) -> str:
    """Return (value − centre) / spread as recorded, with digits enough to check it; "" where one of them was not."""
    if value is None or of.centre is None or not of.spread or of.advantage is None:
        return ""
    clamp = number(view.record.rule.get("clamp"))
    is_cut = clamp > 0 and abs(of.advantage) >= clamp * (1 - 1e-6)
    text = ""
    for digits in range(3, 7):
        start, centre, spread = (round(one, digits) for one in (value, of.centre, of.spread))
        plus = "+" if signed and start > 0 else ""
        sign = plus if start >= 0 else "−"
        minus = "+" if centre < 0 else "−"
        text = f"({sign}{abs(start):.{digits}f} {minus} {abs(centre):.{digits}f}) / {spread:.{digits}f}"
        quotient = (start - centre) / spread if spread else 0.0
        if abs(quotient) >= clamp - NEAR if is_cut else spread and abs(quotient - of.advantage) <= NEAR:
            break
    return f"{text}, cut to {share(of.advantage)}" if is_cut else text
