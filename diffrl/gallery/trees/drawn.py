"""What was drawn, what was explored first, and why these were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffrl.gallery.trees.facts import Fact, Paragraph, fact
from diffrl.gallery.trees.numbers import known, level, push
from diffrl.gallery.trees.splits import draws, train, weights_of
from diffrl.gallery.trees.words import Sums, left_out
from diffrl.precision.facts import TRAINING
from diffrl.precision.formats import PRECISIONS
from diffrl.trees.record import TreeNode

CHOSEN = {
    "best": "the best by proxy",
    "worst": "the worst by proxy",
    "split": "the two ends of splits whose branches differ most",
    "fill": "from the best and the worst of the rest",
    "random": "at random",
    "all": "all of them",
    "unscored": "proxy could not be scored",
    "audit": "at random, only to check the ranking",
}
"""What is drawn again and why, by the first word of the reason in the record."""
CONTRAST = "Both ends of what was explored are generated again: contrast between good and bad is what teaches."
FEW = 4
"""How many noise levels are named one by one."""


def drawn(given: Sums) -> Paragraph:
    """How many images, from how many noises, where paths split; with exploring, the pool and the choice."""
    kinds = [_kind(node) for node in given.leaves if node.leaf and node.leaf.chosen is not None]
    both_ends = {"best", "worst"} <= set(kinds) or "split" in kinds
    facts = (_pool(given, kinds) if given.record.explored else []) + _pictures(given) + _agreement(given)
    return Paragraph("drawn", "What was sampled", facts, CONTRAST if given.record.explored and both_ends else "")


def _pool(given: Sums, kinds: Sequence[str]) -> list[Fact]:
    """The exploring stage, and what was kept of it."""
    explored = given.record.explored or {}
    facts = [fact("Candidates explored", len(given.leaves))]
    if explored.get("precision"):
        facts.append(fact("Explored in", precision(explored)))
    if explored.get("steps"):
        facts.append(fact("Steps of a candidate", f"{explored['steps']} of {len(given.record.sigmas) - 1}"))
    facts.append(fact("Generated again", len(kinds)))
    found = {**CHOSEN, "": "for other reasons"}
    facts += [fact(f"Generated again: {why}", n) for kind, why in found.items() if (n := kinds.count(kind))]
    return facts + _doubtful(given)


def _doubtful(given: Sums) -> list[Fact]:
    """Where the choice was none by the proxy: candidates as good as a chosen one; and where the proxy was wrong."""
    facts = []
    for kind, last in (("best", min), ("worst", max)):
        proxies = [node.leaf.proxy for node in given.leaves if node.leaf and _chosen_as(node, kind)]
        edge = last((proxy for proxy in proxies if proxy is not None), default=None)
        unchosen = [node.leaf.proxy for node in given.leaves if node.leaf and node.leaf.chosen is None]
        if edge is not None and (left := unchosen.count(edge)):
            facts.append(fact(f"Not generated again, though level by proxy with one of the {kind}", left))
    totals = [node.leaf.total for node in given.drawn_leaves if node.leaf and node.leaf.total is not None]
    worst = [node.leaf.total for node in given.drawn_leaves if node.leaf and _chosen_as(node, "worst")]
    if totals and (wrong := worst.count(max(totals))):
        facts.append(fact("The worst by proxy, with the highest true reward", wrong))
    return facts


def _chosen_as(node: TreeNode, kind: str) -> bool:
    return node.leaf is not None and node.leaf.chosen is not None and _kind(node) == kind


def _pictures(given: Sums) -> list[Fact]:
    """What exists in the training precision, where its paths split or take new noise, and how much of it trains."""
    record, leaves, steps = given.record, given.drawn_leaves, len(given.record.sigmas) - 1
    facts = [
        fact("Images of this prompt", len(leaves)),
        fact("Starting noises", len({node.root for node in leaves})),
    ]
    for ways in sorted(set(record.branching.values()), reverse=True):
        levels = [level(record.sigmas[step]) for step in sorted(record.branching) if record.branching[step] == ways]
        named = ", ".join(levels) if len(levels) <= FEW else f"{len(levels)}, from {levels[0]} to {levels[-1]}"
        facts.append(
            fact(f"Noise levels where paths split into {ways}" if ways > 1 else "Noise levels of new noise", named)
        )
    if still := steps - len(record.branching):
        facts.append(fact("Steps that add no noise, where there is nothing to choose", f"{still} of {steps}"))
    training = 0 if left_out(record) else sum(_trains(given, leaf) for leaf in leaves)
    return [*facts, fact("Images that train", f"{training} of {len(leaves)}")]


def _trains(given: Sums, leaf: TreeNode) -> bool:
    """Whether an image trains: by itself, at a split or by one of its steps."""
    if given.record.rule.get("samples"):
        return bool(leaf.leaf and leaf.leaf.trained and push(leaf.leaf.advantage))
    if train(given):
        return any(draws(node) and push(own) for node, own in weights_of(given, leaf))
    return any(edge.trained and push(edge.advantage) for edge in given.path(leaf))


def precision(explored: Mapping[str, Any]) -> str:
    """The exploring stage's arithmetic, "NVFP4 (emulated)"; with the policy itself, its training precision."""
    name, engine = str(explored.get("precision")), explored.get("engine")
    if name == TRAINING:
        return "the training precision"
    title = PRECISIONS[name].title if name in PRECISIONS else name
    return title + (f" ({engine})" if engine and engine != "policy" else "")


def _kind(node: TreeNode) -> str:
    assert node.leaf is not None and node.leaf.chosen is not None
    return "audit" if node.leaf.audit else next((kind for kind in CHOSEN if node.leaf.chosen.startswith(kind)), "")


def _agreement(given: Sums) -> list[Fact]:
    """How well the proxy ordered what was drawn again."""
    both = [node.leaf for node in given.drawn_leaves if node.leaf and known(node.leaf.proxy) and known(node.leaf.total)]
    pairs = [(one, two) for place, one in enumerate(both) for two in both[place + 1 :]]
    signs = [(one.proxy - two.proxy) * (one.total - two.total) for one, two in pairs]  # type: ignore[operator]
    counts = {
        "alike": sum(sign > 0 for sign in signs),
        "the other way round": sum(sign < 0 for sign in signs),
        "tied": sum(sign == 0 for sign in signs),
    }
    named = ", ".join(f"{count} {how}" for how, count in counts.items())
    return [fact("Pairs as proxy and true reward order them", f"{named}, of {len(pairs)}")] if pairs else []
