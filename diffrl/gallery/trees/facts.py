"""What is known of a node, as facts: of the step that ends in it, of its image, of its split; and tables of them.

Panel, tables and screen readers all read these, so that a number is written in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from diffrl.gallery.numbers import counted
from diffrl.gallery.records import reason
from diffrl.gallery.trees.numbers import compact, known, level, likelier, number, push, share, signed, three, tiny, weak
from diffrl.gallery.trees.sums import reward_sum, sample_sum, step_sum
from diffrl.gallery.trees.view import TreeView, total
from diffrl.trees.record import TreeNode

FEW = 4
"""How many of a step's paths are named."""


class NodeFact(NamedTuple):
    """A label, what it is, and the words that belong to it where there is room: how it came about, its unit."""

    label: str
    value: str
    note: str = ""


Facts = list[NodeFact]

STEP_COLUMNS = (
    "Noise level", "Value before", "Value", "Step reward", "Credited", "Advantage", "Turning point", "Trains", "Weight",
    "Change of log-likelihood",
)  # fmt: skip
SPLIT_COLUMNS = ("Noise level", "Compared", "Length of the direction", "Trains", "Moved", "Cosine", "Why not")
IMAGE_COLUMNS = (
    "Reward", "Passed", "Advantage", "Weight", "Trains by contrast", "Proxy reward", "Generated again",
    "Could not be scored",
)  # fmt: skip


class Table(NamedTuple):
    """Nodes with some of their facts."""

    key: str  # a word for style sheets and tests
    title: str
    of: str  # what a row is
    columns: Sequence[str]  # labels of the facts; those that no node has are left out
    rows: Sequence[tuple[int, Sequence[str]]]  # a node's id and what its facts say, "–" where it has none


def title(view: TreeView, node: TreeNode) -> str:
    """Return what a node is, with its name."""
    name = view.names[node.id]
    if node.leaf is not None:
        return f"Image {name}" if node.sampled else f"Candidate {name}"
    return f"Starting noise {name}" if node.parent is None else f"Node {name}"


def describe(view: TreeView, node: TreeNode) -> str:
    """Return a node and the step to it in one line, as a screen reader says it."""
    facts = [*sample_facts(view, node), *(step_facts(view, node) if node.sampled else [])]
    facts += split_facts(view, node)
    words = [f"{fact.label.lower()} {fact.value}" for fact in facts if fact.value not in ("–", "no")]
    return ", ".join([title(view, node) + ("" if node.sampled else ", only explored"), *words])


def step_facts(view: TreeView, node: TreeNode) -> Facts:
    """Return the facts of a node and of the step that ends in it."""
    above, sigmas = view.parent(node), view.record.sigmas
    if above is None or node.step is None:
        return [NodeFact("Noise level", level(node.sigma)), NodeFact("Value", three(node.value))]
    facts = [
        NodeFact("Step", f"{node.step + 1} of {len(sigmas) - 1}"),
        NodeFact("Noise level", f"{level(sigmas[node.step])} → {level(node.sigma)}"),
        NodeFact("Value before", three(above.value), f", of {view.names[above.id]}"),
        NodeFact("Value", three(node.value)),
        NodeFact("Step reward", signed(view.step_reward(node))),
        *_credited(view, node),
        NodeFact("Advantage", share(node.advantage), equals(step_sum(view, node))),
        _turning(view, node),
    ]
    if view.trains_splits:
        facts.append(NodeFact("Weight", share(view.weight(node)), f" at the split {view.names[above.id]}"))
    else:
        facts.append(NodeFact("Trains", view.step_trains(node)))
    value, note = change(view, node.log_ratio)
    return [*facts, NodeFact("Change of log-likelihood", value, note + ", against its push" * against(view, node))]


def sample_facts(view: TreeView, node: TreeNode) -> Facts:
    """Return the facts of an image or a candidate; none of inner nodes."""
    leaf, passed = node.leaf, view.passed(node)
    if leaf is None:
        return []
    facts: Facts = []
    if node.sampled:
        reward = three(leaf.total) if known(leaf.total) else "failed"
        facts.append(NodeFact("Reward", reward, equals(reward_sum(view, node))))
        if passed is not None:
            facts.append(NodeFact("Passed", "yes" if passed else "no", f", by {view.verdict}"))
        facts.append(NodeFact("Advantage", share(leaf.advantage), equals(sample_sum(view, node))))
        if view.trains_splits:
            weights = [f"{share(weight)} at {view.names[split.id]}" for split, weight in reversed(view.weights(node))]
            facts.append(NodeFact("Weight", ", ".join(weights) or "–"))
        else:
            facts.append(NodeFact("Trains by contrast", view.sample_trains(node)))
    if view.record.explored:
        facts.append(NodeFact("Proxy reward", three(leaf.proxy), _rank(view, leaf.proxy)))
        facts.append(NodeFact("Generated again", view.reason(node) or "no"))
    if leaf.audit:
        facts.append(NodeFact("Audit", "generated only to check the ranking"))
    if leaf.error:
        facts.append(NodeFact("Could not be scored", leaf.error))
    if why := reason(leaf.notes):
        facts.append(NodeFact("Scorers say", why))
    return facts + [NodeFact(name, three(raw)) for name, raw in leaf.rewards.items() if "/" not in name]


def split_facts(view: TreeView, node: TreeNode) -> Facts:
    """Return the facts of a split that could train: its direction, what it is made of, how far the prediction went."""
    effect = node.update_effect
    if effect is None:
        return []
    trains, idle = view.split_trains(node), view.idle_split(node)
    compared = f"{counted(len(effect.pulls), 'image')} of {counted(effect.children, 'branch', 'branches')}"
    facts = [NodeFact("Noise level", level(effect.sigma)), NodeFact("Compared", compared)]
    if trains == "yes":
        facts.append(NodeFact("Length of the direction", three(effect.size), " in latent units"))
    facts.append(NodeFact("Trains", trains))
    facts += [NodeFact("Why not", idle)] if idle else []
    if known(effect.moved):
        size, moved = number(effect.size), number(effect.moved)
        share_of = NodeFact("Moved", percent(moved / size), " of that length") if trains == "yes" and size else None
        facts.append(share_of or NodeFact("Moved", compact(moved), " in latent units"))
    return [*facts, NodeFact("Cosine", share(effect.cosine))] if known(effect.cosine) else facts


def tables(view: TreeView) -> list[Table]:
    """Return all steps, all splits and all images as tables; none of what the tree does not have."""
    steps = sorted(view.edges, key=lambda edge: -abs(view.strength(edge) or 0.0))
    failed = [node for node in view.sampled_leaves if node.leaf and not known(node.leaf.total)]
    images = [*view.scored, *failed, *(node for node in view.leaves if not node.sampled)]
    splits = view.splits if view.trains_splits else []
    first = "largest weight" if splits else "strongest push"
    return [
        table
        for table in (
            _table(view, "steps", f"All steps, the {first} first", "Step to", steps, step_facts, STEP_COLUMNS),
            _table(view, "splits", "All splits, the longest direction first", "Split", splits, split_facts,
                   SPLIT_COLUMNS),
            _table(view, "images", "All images, the best first", "Image", images, sample_facts, IMAGE_COLUMNS),
        )
        if table.rows
    ]  # fmt: skip


def _table(
    view: TreeView,
    key: str,
    heading: str,
    of: str,
    nodes: Sequence[TreeNode],
    facts_of: Callable[[TreeView, TreeNode], Facts],
    columns: Sequence[str],
) -> Table:
    cells = [{fact.label: fact.value for fact in facts_of(view, node)} for node in nodes]
    columns = [column for column in columns if any(column in row for row in cells)]
    rows = [(node.id, [row.get(column, "–") for column in columns]) for node, row in zip(nodes, cells, strict=True)]
    return Table(key, heading, of, columns, rows)


def became(view: TreeView, node: TreeNode) -> tuple[TreeNode, str]:
    """Return the node whose image stands for a branch, its best sample, and what became of the branch in words."""
    samples = sorted(view.leaves_below(node), key=lambda leaf: leaf.id)
    samples = sorted((leaf for leaf in samples if leaf.leaf and known(leaf.leaf.total)), key=lambda leaf: -total(leaf))
    advantage = "" if node.advantage is None else f", advantage {share(node.advantage)}"
    if node.leaf is not None:
        return node, (f"reward {three(total(node))}" if samples else "failed") + advantage
    if not samples:
        return node, f"value {three(node.value)}{advantage}"
    best, worst = three(total(samples[0])), three(total(samples[-1]))
    images = f"{counted(len(samples), 'image')}, {best}" + (f" to {worst}" if worst != best else "")
    return samples[0], f"value {three(node.value)}{advantage}; {images}"


# --- how numbers are written


def equals(sum_: str) -> str:
    """Return the sum that a number is as words behind it; a sum in words follows a comma."""
    if not sum_:
        return ""
    return f" = {sum_}" if sum_[0] in "(+−0123456789" else f", {sum_}"


def change(view: TreeView, ratio: float | None) -> tuple[str, str]:
    """Return a change of a log-likelihood per dimension, "≈ 0" where that is rounding, and that of the whole step."""
    if ratio is None or not known(ratio):
        return "–", ""
    return ("≈ 0", " per dimension") if 0 < abs(ratio) <= view.rounding else amount(view, ratio)


def amount(view: TreeView, ratio: float) -> tuple[str, str]:
    """Return "+0.0020" and " per dimension × 256 = +0.51, 1.7 times as likely"."""
    dimensions = number(view.record.rule.get("dimensions"))
    whole = ratio * dimensions
    rest = f" × {dimensions:,.0f} = {tiny(whole)}, {likelier(whole)}" if whole else ""
    return tiny(ratio), f" per dimension{rest}"


def against(view: TreeView, node: TreeNode) -> bool:
    """Return whether a step that was clearly pushed went the other way."""
    moved = node.log_ratio or 0.0
    clear = view.step_trains(node) == "yes" and not weak(node.advantage) and abs(moved) > view.rounding
    return clear and push(node.advantage) * moved < 0


def percent(part: float) -> str:
    """Return a share as a percentage of two digits."""
    return f"{100 * part:.{0 if part >= 0.1 else 1}f} %"


def _credited(view: TreeView, node: TreeNode) -> Facts:
    """Return what the step was credited with where that is not what it adds, if it was recorded."""
    step = view.step_reward(node)
    if not known(node.credited) or (not node.turning and step is not None and signed(step) == signed(node.credited)):
        return []
    if node.turning:
        paths = len(view.usable_below(node))
        way = "the way to the end" if paths <= 1 else f"the mean over its {paths} paths"
        return [NodeFact("Credited", signed(node.credited), f", {way}")]
    if view.record.rule.get("reward") == "fused":
        return [NodeFact("Credited", three(node.credited), f", the value of {view.names[node.id]}")]
    return [NodeFact("Credited", signed(node.credited))]


def _turning(view: TreeView, node: TreeNode) -> NodeFact:
    """Return whether paths turn at a step, on which of its paths, and what each comes to from where it starts."""
    turns, start = node.turns or {}, number(getattr(view.parent(node), "value", None))
    ways = {leaf: f"{view.names[leaf]} {signed(total(view.record.nodes[leaf]) - start)}" for leaf in turns}
    kept = [ways[leaf] for leaf in turns if turns[leaf]]
    dropped = [ways[leaf] for leaf in turns if not turns[leaf]]
    paths = f", on {len(kept)} of {len(view.usable_below(node))} paths: {_few(kept)}" if kept else ""
    dropped_words = f"; balancing dropped {_few(dropped)}" if dropped else ""
    return NodeFact("Turning point", "yes ◆" if node.turning else "no", paths + dropped_words)


def _few(words: Sequence[str]) -> str:
    """Return the first of some words, and how many more there are."""
    return ", ".join([*words[:FEW], *([f"{len(words) - FEW} more"] if len(words) > FEW else [])])


def _rank(view: TreeView, proxy: float | None) -> str:
    """Return a candidate's rank by proxy, and how many are level with it."""
    proxies = [other.leaf.proxy for other in view.leaves if other.leaf and other.leaf.proxy is not None]
    if proxy is None or len(proxies) < 2:
        return ""
    same = proxies.count(proxy) - 1
    rank = 1 + sum(other > proxy for other in proxies)
    return f", {rank} of {len(proxies)}" + (f", level with {counted(same, 'other')}" if same else "")
