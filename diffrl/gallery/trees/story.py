"""Why the policy changed: what one tree's record says in tables of facts, and nothing that it does not.

Each function fills one section, or none where there is nothing to tell. A section counts and names nodes; what is known
of a node stands in its panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from diffrl.gallery.trees.facts import split_facts
from diffrl.gallery.trees.numbers import NOTHING, known, level, number, push, share, signed, three
from diffrl.gallery.trees.rule import SAMPLES_BY, rules
from diffrl.gallery.trees.sections import MOST, Fact, Section, counts, fact, naming
from diffrl.gallery.trees.update import idle, update
from diffrl.gallery.trees.view import PULLED, TreeView, total
from diffrl.precision.facts import TRAINING
from diffrl.precision.formats import PRECISIONS
from diffrl.trees.record import TreeLeaf, TreeNode, TreeRecord

FEW = 4
"""How many noise levels are named one by one."""
LACK = 0.01
"""Difference in a part of a reward that is worth a word."""
ALIKE = 0.05
"""Share of the largest difference up to which another split has mattered as much."""
FIRST = "count"
"""The part that is named first: an object that is missing is wrong in the other parts as well."""
WAYS = {1: "pushed up", -1: "pushed down", 0: "pushed neither way"}
CHOSEN = {
    "best": "the best by proxy",
    "worst": "the worst by proxy",
    "split": "the two ends of splits whose branches differ most",
    "family": "whole families of the splits whose branches differ most",
    "fill": "from the best and the worst of the rest",
    "random": "at random",
    "all": "all of them",
    "unscored": "proxy could not be scored",
    "audit": "at random, only to check the ranking",
    "": "for other reasons",
}
"""What is generated again and why, by the first word of the reason in the record."""
TEXTS = {
    "sampled": "Both ends of what was explored are generated again: contrast between good and bad is what teaches.",
    "credit": "Where a path turns, a step counts as its whole way to the end.",
    "splits": "The splits train here, by tree tilt: at each, the predicted image moves towards the better of the "
    "images below it and away from the worse.",
}
"""What stands above the facts of a section."""


def story(view: TreeView) -> list[Section]:
    """Return what was sampled, how it scored, what that says about the steps, and what the update made of it."""
    fill = (sampled, scored, decision, credit, contrast, lesson, update, idle, reckoning)
    filled = [section(view) for section in fill]
    return [section for section in filled if section is not None and (section.facts or section.text)]


def opening(view: TreeView) -> str:
    """Return the tree in two short sentences: what was chosen of a pool, and the split or images that mattered most."""
    leaves, words = view.scored, ""
    if view.record.explored:
        words = f"{len(view.sampled_leaves)} of {len(view.leaves):,} candidates were generated again. "
    if not leaves:
        return f"{words}No image has a reward."
    best, worst = leaves[0], leaves[-1]
    if total(best) - total(worst) <= NOTHING:
        return f"{words}All {len(leaves)} images have the same reward, {three(total(best))}: nothing to tell apart."
    if splits := largest_splits(view):
        node, branches = splits[0]
        ends = " and ".join(f"{view.names[end.id]} {three(end.value)}" for end in (branches[0], branches[-1]))
        where = f"{view.names[node.id]}, noise level {level(view.record.sigmas[branches[0].step or 0])}"
        return f"{words}The split at {where}, mattered most: its branches came to {ends}."
    ends = [f"{view.names[end.id]} with {three(total(end))}" for end in (best, worst)]
    return f"{words}The best image is {ends[0]}, the worst {ends[1]}."


# --- what was sampled, and how it scored


def sampled(view: TreeView) -> Section:
    """Tell how many images, from how many noises, where paths split; with exploring, the pool and the choice."""
    record, leaves, steps = view.record, view.sampled_leaves, len(view.record.sigmas) - 1
    kinds = [_kind(node.leaf) for node in view.leaves if node.leaf and node.leaf.chosen is not None]
    facts = _pool(view, kinds) if record.explored else []
    if record.sampled_by:
        facts.append(fact("Drawn in", f"{precision(record.sampled_by)}, with the {drawing_weights(record)}"))
    facts += counts([("Images of this prompt", len(leaves)), ("Starting noises", len({node.root for node in leaves}))])
    for ways in sorted(set(record.branching.values()), reverse=True):
        levels = [level(record.sigmas[step]) for step in sorted(record.branching) if record.branching[step] == ways]
        named = ", ".join(levels) if len(levels) <= FEW else f"{len(levels)}, from {levels[0]} to {levels[-1]}"
        facts.append(fact(f"Noise levels where paths split into {ways}" if ways > 1 else "Noise levels of new noise",
                          named))  # fmt: skip
    if still := steps - len(record.branching):
        facts.append(fact("Steps that add no noise, where there is nothing to choose", f"{still} of {steps}"))
    training = 0 if view.left_out else sum(view.image_trains(leaf) for leaf in leaves)
    facts += [fact("Images that train", f"{training} of {len(leaves)}"), *_agreement(view)]
    both_ends = bool(record.explored) and ({"best", "worst"} <= set(kinds) or "split" in kinds)
    return Section("sampled", "What was sampled", facts, TEXTS["sampled"] if both_ends else "")


def _pool(view: TreeView, kinds: Sequence[str]) -> list[Fact]:
    """Tell the exploring stage, and what was kept of it."""
    stage = view.record.explored or {}
    steps = f"{stage['steps']} of {len(view.record.sigmas) - 1}" if stage.get("steps") else 0
    return counts(
        [
            ("Candidates explored", len(view.leaves)),
            ("Explored in", precision(stage) if stage.get("precision") else 0),
            ("Steps of a candidate", steps),
            ("Generated again", len(kinds)),
            *((f"Generated again: {why}", kinds.count(kind)) for kind, why in CHOSEN.items()),
        ]
    )


def drawing_weights(record: TreeRecord) -> str:
    """Return which weights of the policy a copy drew the samples with; iteration n is after n iterations."""
    age = round(number((record.sampled_by or {}).get("age")))
    return f"weights of iteration {record.iteration - age}" + (f", {age} before the newest" if age else "")


def precision(stage: Mapping[str, Any]) -> str:
    """Return the exploring stage's arithmetic, "NVFP4 (emulated)"; with the policy itself, its training precision."""
    name, engine = str(stage.get("precision")), stage.get("engine")
    if name == TRAINING:
        return "the training precision"
    title = PRECISIONS[name].title if name in PRECISIONS else name
    return title + (f" ({engine})" if engine and engine != "policy" else "")


def _kind(leaf: TreeLeaf) -> str:
    """Return the word of `CHOSEN` that begins the reason of a choice."""
    return "audit" if leaf.audit else next((kind for kind in CHOSEN if (leaf.chosen or "").startswith(kind)), "")


def _agreement(view: TreeView) -> list[Fact]:
    """Tell how well the proxy ordered what was generated again."""
    pairs = [(number(node.leaf.proxy), total(node)) for node in view.scored if node.leaf and known(node.leaf.proxy)]
    signs = [(one[0] - two[0]) * (one[1] - two[1]) for one, two in combinations(pairs, 2)]
    alike, swapped = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    words = f"{alike} alike, {swapped} the other way round, {signs.count(0)} tied, of {len(signs)}"
    return [fact("Pairs as proxy and true reward order them", words)] if signs else []


def scored(view: TreeView) -> Section | None:
    """Tell how many passed, the best and the worst, failures."""
    leaves, ranked = view.sampled_leaves, view.scored
    if not leaves:
        return None
    facts = [fact("Images with a reward", f"{len(ranked)} of {len(leaves)}")]
    if judged := [passed for node in leaves if (passed := view.passed(node)) is not None]:
        facts.append(fact(f"Passed {view.verdict}", f"{sum(judged)} of {len(judged)}"))
    if ranked:
        equal = total(ranked[0]) - total(ranked[-1]) <= NOTHING
        for which, node in () if equal else (("Best", ranked[0]), ("Worst", ranked[-1])):
            facts.append(fact(which, node, f" ({three(total(node))})"))
        mean = three(sum(map(total, ranked)) / len(ranked))
        facts.append(fact("Reward of all" if equal else "Mean reward", mean))
    return Section("scored", "How it scored", facts)


# --- the decision that mattered most

Split = tuple[TreeNode, Sequence[TreeNode]]
"""A node and the branches that grow from it, best first."""


def decision(view: TreeView) -> Section | None:
    """Tell the splits whose branches differ most in value, and of the first what its branches came to."""
    splits, largest = _splits(view), largest_splits(view)
    if not splits:
        return None
    facts = [fact("Largest difference between branches", three(max(map(_gap, splits))))]
    if not largest:
        return Section("decision", "Which decision mattered most", facts)

    def where(node: TreeNode) -> str:
        branches = dict((split[0].id, split[1]) for split in largest)[node.id]
        idle = view.idle_split(node)
        at = f"noise level {level(view.record.sigmas[branches[0].step or 0])}, {len(branches)} branches"
        return f"{at}; does not train: {idle}" if idle else at

    best, worst = largest[0][1][0], largest[0][1][-1]
    facts.append(fact("Splits within 5 % of it", f"{len(largest)} of {len(splits)}"))
    facts += naming("The earliest of them", [node for node, _ in largest], where)
    facts += [fact("Best branch", best, _branch(view, best)), fact("Worst branch", worst, _branch(view, worst))]
    facts += counts([(f"What {view.names[worst.id]} lacks", _lacking(view, best, worst) or 0)])
    above, below = view.usable_below(best), view.usable_below(worst)
    if not above or not below:
        return Section("decision", "Which decision mattered most", facts)
    # finished images stand for the branches: what is predicted at an early split may look the other way round
    shown = [min(above, key=lambda leaf: (-total(leaf), leaf.id)), min(below, key=lambda leaf: (total(leaf), leaf.id))]
    several = f"Shown: the best image of {view.names[best.id]} and the worst image of {view.names[worst.id]}."
    note = several if len(above) > 1 or len(below) > 1 else ""
    ids = [leaf.id for leaf in shown]
    return Section("decision", "Which decision mattered most", facts, shown=ids, note=note)


def largest_splits(view: TreeView) -> list[Split]:
    """Return the splits that differ most, and those nearly as much; the earliest, which decides for most, first.

    Among equal gaps, the one that is pushed hardest comes first.
    """

    def order(split: Split) -> tuple[float, ...]:
        node, branches = split
        apart = abs(number(branches[0].advantage) - number(branches[-1].advantage))
        return branches[0].step or 0, -len(view.usable_below(node)), -apart

    splits = _splits(view)
    largest = max(map(_gap, splits), default=0.0)
    near = [split for split in splits if _gap(split) >= (1 - ALIKE) * largest] if largest > NOTHING else []
    return sorted(near, key=order)


def _splits(view: TreeView) -> list[Split]:
    """Return the nodes of which two children or more have a value."""
    splits = []
    for node in view.record.nodes:
        below = [child for child in view.below(node) if child.sampled and known(child.value)]
        if len(below) > 1:
            splits.append((node, sorted(below, key=lambda child: -number(child.value))))
    return splits


def _gap(split: Split) -> float:
    return number(split[1][0].value) - number(split[1][-1].value)


def _branch(view: TreeView, node: TreeNode) -> str:
    """Return a branch's value, its advantage (or weight in the direction), and whether the update pushed it."""
    splits, strength = view.trains_splits, view.strength(node)
    trains = view.split_trains(view.parent(node)) if splits else view.step_trains(node)
    state = "left out by a guard" if view.left_out else WAYS[push(strength)]
    if trains != "yes":
        state = PULLED if trains == PULLED and not splits else "does not train"
    return f": value {three(node.value)}, {'weight' if splits else 'advantage'} {share(strength)}, {state}"


def _lacking(view: TreeView, best: TreeNode, worst: TreeNode) -> str:
    """Return what the images below one branch lack against the other's, by the parts of their rewards."""
    first, second = view.parts_below(best), view.parts_below(worst)
    gaps = {name: first[name] - second[name] for name in first if name in second}
    largest = sorted((name for name in gaps if gaps[name] > LACK), key=lambda name: (name != FIRST, -gaps[name]))
    named = [f"{name} {three(second[name])} against {three(first[name])}" for name in largest[:MOST]]
    return ", ".join(named + ([f"{len(largest) - MOST} more"] if len(largest) > MOST else []))


# --- what was pushed


def credit(view: TreeView) -> Section | None:
    """Tell the steps with the largest advantages, and the turning points, those that train first (TP-GRPO)."""
    rule, edges = view.record.rule, view.edges
    if not edges or not rule.get("edges"):
        return None
    paths = rule.get("reward") == "outcome" and max(view.record.branching.values(), default=1) == 1
    if paths:  # the steps of a chain have the same credit: its image stands for all that train
        nodes = [leaf for leaf in view.sampled_leaves if any(edge.trained for edge in view.path(leaf))]
    else:
        nodes = [edge for edge in edges if edge.trained]
    facts: list[Fact] = []
    for way, where in ((1, "up"), (-1, "down")):
        pushed = sorted((n for n in nodes if push(n.advantage) == way), key=lambda n: -way * number(n.advantage))
        label = f"{'Paths' if paths else 'Steps'} pushed {where} most, to"
        facts += naming(label, pushed[:MOST], lambda node: share(node.advantage))
    turns = [edge for edge in edges if edge.turning and known(view.step_reward(edge))]
    turns.sort(key=lambda edge: (view.step_trains(edge) != "yes", -abs(number(view.step_reward(edge)))))
    dropped = sum(not kept for edge in edges for kept in (edge.turns or {}).values())
    facts += counts([("Turning points ◆", len(turns)), ("Turns that balancing dropped", dropped)])
    facts += naming("Largest turning points", turns, lambda edge: _turn(view, edge))
    return Section("credit", "Which steps were pushed", facts, TEXTS["credit"] if turns else "")


def _turn(view: TreeView, edge: TreeNode) -> str:
    """Return what a turning point adds and what it is credited with."""
    credited = f", credited {signed(edge.credited)}" if known(edge.credited) else ""
    return f"adds {signed(view.step_reward(edge))}{credited}" + ", does not train" * (view.step_trains(edge) != "yes")


def contrast(view: TreeView) -> Section | None:
    """Tell what finished images teach, where they train."""
    if not view.record.rule.get("samples"):
        return None
    trained = {n.id: number(n.leaf.advantage) for n in view.sampled_leaves if n.leaf and n.leaf.trained}
    facts: list[Fact] = []
    for way, where in ((1, "Moved towards"), (-1, "Moved away from")):
        images = [node for node, advantage in trained.items() if push(advantage) == way]
        if images:
            far = max(images, key=lambda node: way * trained[node])
            words = f"{len(images)} images, furthest "
            facts.append(fact(where, words, view.record.nodes[far], f" ({share(trained[far])})"))
    if facts:
        name = str(view.record.rule.get("objective"))
        by = f"an objective of your own ({name})" if ":" in name else "contrast"
        facts.insert(0, fact("Images train by", SAMPLES_BY.get(name, by)))
    return Section("contrast", "What the images teach", facts)


def lesson(view: TreeView) -> Section | None:
    """Tell which splits train and what the one of the longest direction asks for."""
    if not view.trains_splits or not view.splits:
        return None
    active = [node for node in view.splits if view.split_trains(node) == "yes"]
    facts = [fact("Splits that train along their direction", f"{len(active)} of {len(view.splits)}")]

    def length(node: TreeNode) -> str:
        facts = {one.label: one.value + one.note for one in split_facts(view, node)}
        return f"noise level {facts['Noise level']}, {facts['Length of the direction']}"

    facts += naming("Longest directions, at", active, length)
    effects = [(node.id, node.update_effect) for node in active]
    strip = next((id for id, effect in effects if effect and effect.before and effect.aim), None)
    note = "" if strip is None else f"Shown: the prediction at {view.names[strip]}."
    return Section("splits", "What the splits teach", facts, TEXTS["splits"], note=note, strip=strip)


def reckoning(view: TreeView) -> Section:
    """Tell by which rule credit is given."""
    return Section("reckoning", "How credit is given here", [fact(key, text) for key, text in rules(view)])
