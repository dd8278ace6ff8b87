"""How an advantage, and a reward, came about: the sum itself, with the numbers of the record.

A sum is computed here from what the record holds, by the rule that it names (diffrl/functional/advantages.py), and is
shown only where it comes to the number that training recorded. Nothing is shown of records that lack a part of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from diffrl.gallery.tree_numbers import NOTHING, factor, known, number, push, share, three
from diffrl.gallery.tree_words import Sums
from diffrl.trees.record import TreeNode

EPS = 1e-4
"""Added to every deviation, in units of the reward."""
NEAR = 0.005
"""Difference up to which two advantages are the same, as shown."""
CLAMP = 5.0
"""Largest advantage, of records that do not say."""


def step_sum(given: Sums, node: TreeNode) -> str:
    """How the advantage of the step that ends in a node came about; "" where that cannot be told.

    "(+0.333 − 0.016) / 0.202, with the mean and deviation of the 8 steps at this noise level"
    """
    rule = given.record.rule
    if rule.get("reward") == "outcome":
        return _shared(given, node)
    if not known(node.credited) or not known(node.advantage):
        return ""
    level, compared = rule.get("normalise") != "group", _compared(given, node)
    some = _some(compared, given, node)
    among = f"the {some} at this noise level" if level else f"this prompt's {some}"
    values = [edge.credited or 0.0 for edge in compared]
    above = given.parent(node)
    if rule.get("normalise") != "siblings":
        sum_ = _quotient(given, node.credited, _centre(given, values), values, node.advantage)
        return f"{sum_}, with the {_baseline(given)} and deviation of {among}" if sum_ else ""
    if rule.get("reward") == "fused" and above is not None:
        sum_ = _quotient(given, node.credited, above.value, values, node.advantage)
        start = f"less the worth of {given.names[above.id]}"
        return f"{sum_}, {start}, over the deviation of {among}" if sum_ else ""
    sum_ = _quotient(given, node.credited, None, values, node.advantage)
    return f"{sum_}, over the deviation of {among}" if sum_ else ""


def sample_sum(given: Sums, node: TreeNode) -> str:
    """The same of a picture's own advantage, from the rewards of its prompt's pictures."""
    leaf, rule = node.leaf, given.record.rule
    if leaf is None or leaf.audit or not known(leaf.total) or not known(leaf.advantage):
        return ""
    if rule.get("std", "group") != "group" or rule.get("combine", "sum") != "sum":
        return ""
    totals = [one.leaf.total for one in given.samples if one.leaf and known(one.leaf.total)]
    values = [total for total in totals if total is not None]
    sum_ = _quotient(given, leaf.total, _centre(given, values), values, leaf.advantage, sign=False)
    return f"{sum_}, with the {_baseline(given)} and deviation of this prompt's {len(values)} pictures" if sum_ else ""


def reward_sum(given: Sums, node: TreeNode) -> str:
    """How a picture's reward is made of its scores: "0.5 × 0.867 (shapes) + 0.5 × 0.000 (shapes_strict)"."""
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


def _compared(given: Sums, node: TreeNode) -> list[TreeNode]:
    """The steps whose mean and deviation count for a step's advantage, itself among them: credited ones only."""
    everywhere = given.record.rule.get("normalise") == "group"
    return [edge for edge in given.edges if known(edge.credited) and (everywhere or edge.step == node.step)]


def _some(compared: Sequence[TreeNode], given: Sums, node: TreeNode) -> str:
    """How many they are, and of how many where others have no credit to compare."""
    everywhere = given.record.rule.get("normalise") == "group"
    count = sum(everywhere or edge.step == node.step for edge in given.edges)
    return f"{count} steps" if count == len(compared) else f"{len(compared)} of {count} steps that have credit"


def _centre(given: Sums, values: Sequence[float]) -> float:
    return statistics.median(values) if _baseline(given) == "median" else statistics.fmean(values)


def _baseline(given: Sums) -> str:
    return "median" if given.record.rule.get("baseline") == "median" else "mean"


def _quotient(
    given: Sums,
    value: float | None,
    centre: float | None,
    values: Sequence[float],
    recorded: float | None,
    sign: bool = True,
) -> str:
    """(value − centre) / deviation, if that comes to the recorded advantage, with digits enough to check it."""
    deviation = statistics.pstdev(values)
    if value is None or recorded is None or deviation <= NOTHING:
        return ""
    clamp = number(given.record.rule.get("clamp")) or CLAMP
    whole = (value - (centre or 0.0)) / (deviation + EPS)
    cut = max(-clamp, min(clamp, whole))
    if abs(cut - recorded) > NEAR or push(cut) != push(recorded):
        return ""
    text = ""
    for digits in range(3, 7):
        shown = round(value, digits), round(centre or 0.0, digits), round(deviation + EPS, digits)
        text = _written(shown, centre is not None, digits, sign)
        if shown[2] and abs((shown[0] - shown[1]) / shown[2] - whole) <= NEAR:
            break
    return text + (f" = {share(whole)}, cut to {share(cut)}" if abs(whole) > clamp + NEAR else "")


def _written(shown: tuple[float, float, float], centred: bool, digits: int, sign: bool) -> str:
    value, centre, deviation = shown
    first = ("+" if sign and value > 0 else "−" if value < 0 else "") + f"{abs(value):.{digits}f}"
    if centred:
        first = f"({first} {'+' if centre < 0 else '−'} {abs(centre):.{digits}f})"
    return f"{first} / {deviation:.{digits}f}"


def _shared(given: Sums, node: TreeNode) -> str:
    """Of steps that share the advantages of their pictures."""
    own = [one.leaf.advantage for one in given.usable_below(node) if one.leaf and known(one.leaf.advantage)]
    values = [advantage for advantage in own if advantage is not None]
    if not values or not known(node.advantage) or abs(statistics.fmean(values) - (node.advantage or 0.0)) > NEAR:
        return ""
    return "that of its picture" if len(values) == 1 else f"the mean of its {len(values)} pictures' advantages"
