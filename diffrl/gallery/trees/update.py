"""What an update made of the steps and of whole paths: counts, and the steps and images that stand out."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.trees.facts import Fact, Paragraph, fact
from diffrl.gallery.trees.numbers import compact, known, number, push, three
from diffrl.gallery.trees.splits import moves, train
from diffrl.gallery.trees.words import Sums, against, amount, pushed, rounding, skipped, total
from diffrl.trees.record import TreeNode

COMPROMISE = (
    "One network serves all steps, images and prompts, and an update is a compromise between them: not every step "
    "goes where it is pushed."
)


def update(given: Sums) -> Paragraph | None:
    """Whether steps and paths became more or less likely, as their advantages asked."""
    measured = [edge for edge in given.edges if known(edge.log_ratio)]
    facts, label = [*_behind(given), *moves(given)], "Change of log-likelihood"
    if not given.edges:
        return _paragraph([*facts, fact(label, "none to measure: no step adds noise")])
    if not measured:
        return _paragraph([*facts, fact(label, "not recorded")])
    if max(map(_size, measured)) <= rounding(given.record):
        return _paragraph([*facts, fact(label, f"≈ 0 at all {len(measured)} measured steps")])
    if given.record.rule.get("edges"):
        facts += _steps(given, measured)
    elif not train(given):
        facts.append(fact("What trains", "the finished images; steps are only measured"))
    return _paragraph(facts + _paths(given), COMPROMISE)


def _paragraph(facts: Sequence[Fact], text: str = "") -> Paragraph:
    return Paragraph("update", "What the update did", facts, text)


def _behind(given: Sums) -> list[Fact]:
    """How many prompts and updates there were, at which learning rate, and what a guard left out."""
    rule, (out, updates) = given.record.rule, skipped(given.record)
    prompts, rate = round(number(rule.get("prompts"))), number(rule.get("learning_rate"))
    facts: list[Fact] = []
    if prompts and updates:
        at = f"; learning rate {compact(rate)}" if rate else ""
        facts.append(fact("Updates", f"{updates}, each from {prompts} prompts{at}"))
    if out:
        facts.append(fact("Left out by a guard", f"{out} of {updates} updates"))
    return facts


def _steps(given: Sums, measured: Sequence[TreeNode]) -> list[Fact]:
    """Of the steps that were pushed how many went there, and which moved most; the side effect that is larger still."""
    bound, asked = rounding(given.record), [edge for edge in measured if pushed(edge)]
    facts = _counts("Steps pushed", [(push(edge.advantage), edge.log_ratio or 0.0, bound) for edge in asked])
    if still := sum(_size(edge) <= bound for edge in asked):
        facts.append(fact("Of these steps, moved by rounding alone", still))
    most = max(asked, key=_size, default=None)
    if most is not None:
        facts.append(
            _moved(given, "Moved most", most, most.log_ratio or 0.0, ", against its push" * against(given, most))
        )
    aside = max((edge for edge in measured if not pushed(edge)), key=_size, default=None)
    if aside is not None and _size(aside) > max(bound, _size(most) if most is not None else 0.0):
        facts.append(_moved(given, "Moved more, though nobody pushed it", aside, aside.log_ratio or 0.0))
    return facts


def _paths(given: Sums) -> list[Fact]:
    """Of the paths to images with an advantage how many went its way, and the strongest contradiction on each side.

    A path's change is the sum of the log-ratios of its steps; nothing is said where one of them was not measured.
    """
    paths = {
        node.id: [edge.log_ratio for edge in given.path(node) if edge.parent is not None]
        for node in given.scored
        if node.leaf and not node.leaf.audit and push(node.leaf.advantage)
    }
    if not paths or not all(ratios and all(map(known, ratios)) for ratios in paths.values()):
        return []
    nodes, exact = given.record.nodes, rounding(given.record)
    moved = [
        (push(nodes[id].leaf.advantage), sum(ratio or 0.0 for ratio in ratios), exact * len(ratios))  # type: ignore[union-attr]
        for id, ratios in paths.items()
    ]
    facts = _counts("Paths to images with an advantage", moved)
    astray = [
        (nodes[id], change) for id, (way, change, bound) in zip(paths, moved, strict=True) if -way * change > bound
    ]
    fell = [(node, change) for node, change in astray if change < 0]
    rose = [(node, change) for node, change in astray if change > 0]
    best = [max(fell, key=_reward_then_change)] if fell else []
    worst = [min(rose, key=_reward_then_change)] if rose else []
    for found, which in ((best, "Best image whose path became less likely"),
                         (worst, "Worst image whose path became more likely")):  # fmt: skip
        facts += [_moved(given, which, node, change, f", reward {three(total(node))}") for node, change in found]
    return facts


def _reward_then_change(moved: tuple[TreeNode, float]) -> tuple[float, float]:
    """Orders by the reward; of equal ones, a fall is the greater and a rise the lesser the further it went."""
    return round(total(moved[0]), 6), -moved[1]


def _counts(what: str, moved: Sequence[tuple[int, float, float]]) -> list[Fact]:
    """How many were asked to go up and down, and how many did: way, change and the size that counts as none."""
    facts = []
    for way, where, likely in ((1, "up" if "pushed" in what else "above 0", "more"),
                               (-1, "down" if "pushed" in what else "below 0", "less")):  # fmt: skip
        alike = [way * change > bound for own, change, bound in moved if own == way]
        if alike:
            facts.append(fact(f"{what} {where}", f"{len(alike):,}; {sum(alike):,} became {likely} likely"))
    return facts


def _moved(given: Sums, label: str, node: TreeNode, ratio: float, rest: str = "") -> Fact:
    """A node and how its step's or path's log-likelihood changed."""
    return fact(label, given.ref(node.id), f": {amount(given, ratio)}{rest}")


def _size(edge: TreeNode) -> float:
    return abs(edge.log_ratio or 0.0)
