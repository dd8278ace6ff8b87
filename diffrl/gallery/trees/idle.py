"""What trained nothing, and why: counts by reason."""

from __future__ import annotations

from collections import Counter

from diffrl.credit.rules import recorded_rule
from diffrl.gallery.trees.facts import Paragraph, fact
from diffrl.gallery.trees.numbers import NOTHING, known, push
from diffrl.gallery.trees.splits import pulled, splits, train, why_not
from diffrl.gallery.trees.words import Sums, pushed, total
from diffrl.trees.record import TreeNode

Row = tuple[str, int | str]
PULLED = "only pulled to the starting model"


def idle(given: Sums) -> Paragraph | None:
    """What trains nothing, and why."""
    rows: list[Row] = [
        ("Candidates only explored", sum(not node.drawn for node in given.leaves)),
        ("Images only to check the ranking", sum(node.leaf.audit for node in given.drawn_leaves if node.leaf)),
    ]
    rows += _dropped(given) or [*_equal(given), *_steps(given), *_pictures(given)]
    return Paragraph("idle", "What does not train", [fact(label, found) for label, found in rows if found])


def _dropped(given: Sums) -> list[Row]:
    """That no image was used, and so the prompt was not."""
    samples = given.samples
    if not samples or any(node.leaf and known(node.leaf.advantage) for node in samples):
        return []
    failed = sum(not (node.leaf and known(node.leaf.total)) for node in samples)
    why = f"{failed} of {len(samples)} images could not be scored" if failed else "too few images to compare"
    return [("The whole prompt", f"{PULLED if _any_pulled(given) else 'left out of this update'}: {why}")]


def _any_pulled(given: Sums) -> bool:
    return (
        any(map(given.pulled, given.edges))
        or any(map(given.pulled_sample, given.samples))
        or any(map(pulled, splits(given)))
    )


def _equal_rewards(given: Sums) -> bool:
    rewards = [total(node) for node in given.scored if node.leaf and not node.leaf.audit]
    return len(rewards) > 1 and rewards[0] - rewards[-1] <= NOTHING


def _level_steps(given: Sums) -> bool:
    """Whether equal rewards are why no step has credit."""
    return _equal_rewards(given) and not any(push(edge.advantage) for edge in given.edges)


def _level_samples(given: Sums) -> bool:
    """The same of images that train by contrast, or pull at splits."""
    return _equal_rewards(given) and not any(push(node.leaf.advantage) for node in given.samples if node.leaf)


def _equal(given: Sums) -> list[Row]:
    """That rewards without a difference teach nothing."""
    rule = given.record.rule
    level = {
        "steps": given.edges and rule.get("edges") and _level_steps(given),
        "images": rule.get("samples") and _level_samples(given),
        "splits": train(given) and _level_samples(given),
    }
    what = ", ".join(name for name, found in level.items() if found)
    return (
        [(f"Equal rewards, so advantages are 0: {what}", PULLED if _any_pulled(given) else "no credit")] if what else []
    )


def _steps(given: Sums) -> list[Row]:
    """Steps, or splits, that are not pushed, by why."""
    edges, rule = given.edges, given.record.rule
    if train(given):
        return _splits(given) if edges else []
    if not rule.get("edges"):
        return [("Steps: with this objective only finished images train", len(edges))]
    count = Counter(_why_not(given, edge) for edge in edges if not pushed(edge))
    pruned = "left out by pruning" if rule.get("prune") else "not in the gradient"
    rows: list[Row] = [
        (f"Steps {pruned}", f"{count['pruned']} of {len(edges)}" if count["pruned"] else 0),
        ("Steps that lead only to audits", count["audits"]),
        ("Steps that lead to no image that counts", count["failed"]),
    ]
    if _level_steps(given):
        return rows
    return [
        *rows,
        ("Splits with one branch that counts, nothing to compare it with", _lone_splits(given)),
        (f"Steps with advantage 0, {PULLED}", count["pulled"]),
        ("Steps with advantage 0", count["level"]),
    ]


def _splits(given: Sums) -> list[Row]:
    """Splits without a direction, by why; equal rewards are a reason that is told once."""
    reasons = Counter(why for node in splits(given) if (why := why_not(given, node)))
    rows: list[Row] = [] if _level_samples(given) else [(f"Splits: {why}", n) for why, n in reasons.items()]
    return [*rows, (f"Splits {PULLED}", sum(map(pulled, splits(given))))]


def _why_not(given: Sums, edge: TreeNode) -> str:
    if edge.pruned if edge.pruned is not None else push(edge.advantage):
        return "pruned"
    if given.pulled(edge):
        return "pulled"
    if not given.usable_below(edge):
        below = [leaf.leaf for leaf in given.leaves_below(edge) if leaf.leaf]
        return "audits" if below and all(leaf.audit for leaf in below) else "failed"
    return "pruned" if given.pulls else "level"  # where the reference pulls, a step without advantage trains as well


def _pictures(given: Sums) -> list[Row]:
    """Scored images that have no part in the contrast, by why."""
    if not given.record.rule.get("samples"):
        return []
    samples = [node for node in given.samples if node.leaf and known(node.leaf.total)]
    level = [node for node in samples if node.leaf and not push(node.leaf.advantage)]
    out = sum(bool(node.leaf and not node.leaf.trained) for node in samples if node not in level)
    rows: list[Row] = [("Scored images that took no part in the contrast", out)]
    if _level_samples(given):
        return rows
    count = sum(map(given.pulled_sample, level))
    return [
        *rows,
        (f"Images with advantage 0, {PULLED}", count),
        ("Images with advantage 0, which pull neither way", len(level) - count),
    ]


def _lone_splits(given: Sums) -> int:
    """Splits of which one branch is left, where credit rests on the difference between branches."""
    rule = given.record.rule
    stepwise = recorded_rule(rule.get("reward")).differences
    if rule.get("value", "leaves") != "leaves" or not (stepwise or rule.get("normalise") == "siblings"):
        return 0
    alive = [
        sum(bool(given.usable_below(given.record.nodes[child])) for child in below)
        for parent, below in given.children.items()
        if parent is not None and len(below) > 1
    ]
    return alive.count(1)
