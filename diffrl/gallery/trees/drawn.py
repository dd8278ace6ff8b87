"""The first paragraph of a tree's story: what was drawn, what was explored first, and why these were kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffrl.gallery.trees.numbers import counted, known, level, push
from diffrl.gallery.trees.sentences import Paragraph, Sentence, joined, plain, sentence
from diffrl.gallery.trees.splits import draws, weights_of
from diffrl.gallery.trees.splits import train as splits_train
from diffrl.gallery.trees.words import Sums, skipped
from diffrl.trees.record import TreeNode

KINDS = (
    ("best", "the {} best"),
    ("worst", "the {} worst"),
    ("split", "{} at the two ends of splits whose branches differ most"),
    ("fill", "{} from the best and the worst of the rest"),
    ("random", "{} at random"),
    ("all", "all {}"),
    ("unscored", "{} whose proxy could not be scored"),
    ("audit", "{} at random to check the ranking"),
)
PRECISIONS = {"nvfp4": "NVFP4", "mxfp8": "MXFP8", "fp8": "FP8", "int8": "INT8"}
TELLING = ("best", "worst", "split", "fill")


def drawn(given: Sums) -> Paragraph:
    """How many pictures, from how many noises, where paths split; with exploring, the pool and the choice."""
    told = pool(given) if given.record.explored else []
    told += [pictures(given), *between(given), *everything(given), *agreement(given)]
    return Paragraph("drawn", "What was drawn", told)


def between(given: Sums) -> list[Sentence]:
    """That steps which add no noise choose nothing, where there are some beside those that do."""
    rest = len(given.record.sigmas) - 1 - len(given.record.branching)
    if not given.edges or rest < 1:
        return []
    steps = "other step adds" if rest == 1 else f"other {rest} steps add"
    return [sentence(f"The {steps} no noise, so there is nothing to choose there.")]


def everything(given: Sums) -> list[Sentence]:
    """That nothing was selected, where that is so: every picture trains, by itself, by its steps or at a split."""
    leaves, (out, updates) = given.drawn_leaves, skipped(given.record)
    rule = given.record.rule
    if given.record.explored or rule.get("prune") or (out and out >= updates) or len(leaves) < 2:
        return []
    if rule.get("samples"):
        train = [bool(node.leaf and node.leaf.trained and push(node.leaf.advantage)) for node in leaves]
    elif splits_train(given):
        train = [any(draws(node) and push(own) for node, own in weights_of(given, leaf)) for leaf in leaves]
    else:
        train = [any(edge.trained and push(edge.advantage) for edge in given.path(node)) for node in leaves]
    return [sentence(f"Nothing was selected: all {len(leaves)} pictures train.")] if all(train) else []


def pictures(given: Sums) -> Sentence:
    """What exists in the training precision."""
    record, leaves = given.record, given.drawn_leaves
    roots = len({node.root for node in leaves})
    splits = sorted(step for step, children in record.branching.items() if children > 1)
    lone = sorted(step for step, children in record.branching.items() if children == 1)
    text = (
        f"Iteration {record.iteration} {'then drew' if record.explored else 'drew'} {counted(len(leaves), 'picture')} "
    )
    text += f"of this prompt from {counted(roots, 'starting noise')}"
    if splits:
        ways = {record.branching[step] for step in splits}
        into = f"into {ways.pop()} " if len(ways) == 1 else ""
        text += f"; {'paths split' if given.edges else 'a path splits'} {into}at noise {_levels(record.sigmas, splits)}"
        if lone:
            text += f" and take new noise without splitting at {_levels(record.sigmas, lone, short=True)}"
    elif lone:
        text += f", each on a path of its own that takes new noise at {_levels(record.sigmas, lone, short=True)}"
    else:
        text += ", without noise on the way"
    return sentence(text + ".")


def _levels(sigmas: object, steps: list[int], short: bool = False) -> str:
    """Noise levels of steps, "levels 1.00 and 0.50"; of many short ones how many."""
    values = [level(sigmas[step]) for step in steps]  # type: ignore[index]
    if short and len(values) > 4:
        return f"{len(values)} noise levels from {values[0]} to {values[-1]}"
    several = "" if not short else "noise "
    return f"{several}{'level' if len(values) == 1 else 'levels'} {plain(joined([(value,) for value in values]))}"


def pool(given: Sums) -> list[Sentence]:
    """The exploring stage, and what was kept of it."""
    explored, steps = given.record.explored or {}, len(given.record.sigmas) - 1
    count = len(given.leaves)
    how = f" in {precision(explored)}" if explored.get("precision") else ""
    how += f" with {explored['steps']} of {counted(steps, 'step')}" if explored.get("steps") else ""
    told = [
        sentence(f"{counted(count, 'candidate')} {'was' if count == 1 else 'were'} explored{how} and scored by proxy.")
    ]
    chosen = [node for node in given.leaves if node.leaf and node.leaf.chosen is not None]
    kinds = [_kind(node) for node in chosen]
    parts = [words.format(kinds.count(kind)) for kind, words in KINDS if kinds.count(kind)]
    if other := kinds.count(""):
        parts.append(f"{other} for other reasons")
    if {"best", "worst"} <= set(kinds) or "split" in kinds:
        last = max(
            place for place, (kind, _) in enumerate(kind for kind in KINDS if kinds.count(kind[0])) if kind in TELLING
        )
        parts[last] += ", because contrast between good and bad is what teaches"
        parts[last] += "," if last + 1 < len(parts) else ""
    if parts:
        told.append(
            sentence(
                f"{len(chosen)} of them were chosen to be drawn again: ", *joined([(part,) for part in parts]), "."
            )
        )
    return told


def precision(explored: Mapping[str, Any]) -> str:
    """The exploring stage's arithmetic, "NVFP4 (emulated)"; with the policy itself, its training precision."""
    name, engine = str(explored.get("precision")), explored.get("engine")
    if name == "training":
        return "the training precision"
    return PRECISIONS.get(name, name) + (f" ({engine})" if engine and engine != "policy" else "")


def _kind(node: TreeNode) -> str:
    assert node.leaf is not None and node.leaf.chosen is not None
    if node.leaf.audit:
        return "audit"
    return next((kind for kind, _ in KINDS if node.leaf.chosen.startswith(kind)), "")


def agreement(given: Sums) -> list[Sentence]:
    """How well the proxy ordered what was drawn again."""
    both = [node.leaf for node in given.drawn_leaves if node.leaf and known(node.leaf.proxy) and known(node.leaf.total)]
    pairs = [(one, two) for place, one in enumerate(both) for two in both[place + 1 :]]
    signs = [(one.proxy - two.proxy) * (one.total - two.total) for one, two in pairs]  # type: ignore[operator]
    alike, otherwise = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    if not pairs:
        return []
    tied = len(pairs) - alike - otherwise
    text = f"Of {counted(len(pairs), 'pair')} among those drawn again, proxy and true reward order {alike} alike"
    text += f", {otherwise} the other way round" + (f"; {tied} are tied in one of the two." if tied else ".")
    return [sentence(text)]
