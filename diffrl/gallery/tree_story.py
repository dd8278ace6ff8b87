"""Why the policy changed, in plain words: what one tree's record says, and nothing that it does not.

`story` gives paragraphs of sentences; a sentence is text and references to nodes, so that pages can link them. Each
function below writes one paragraph, or none where there is nothing to tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.numbers import signed, three
from diffrl.gallery.tree_drawn import drawn
from diffrl.gallery.tree_effects import idle, update
from diffrl.gallery.tree_sentences import Paragraph, Ref, Sentence, joined, sentence
from diffrl.gallery.tree_words import NOTHING, Sums, counted, known, level, push, pushed, share, skipped, sums, total
from diffrl.tracking.trees import TreeNode, TreeRecord

MOST, TURNS = 3, 2
"""How many steps a sentence names; how many turning points are told."""
LACK = 0.01
"""Difference in a part of a reward that is worth a word."""
CREDIT = {
    "outcome": "A step shares the credit of the pictures that it leads to",
    "fused": "A step is worth the mean reward of the pictures that it leads to",
    "incremental": "A step earns what it adds to the value of its node",
    "turning_point": "A step earns what it adds to the value of its node, at a turning point the whole way to the end",
}
COMPARED = {
    "outcome": "each picture is compared with the others of this prompt",
    "group": "it is compared with all other steps of this prompt",
    "depth": "it is compared with this prompt's other steps at the same noise level",
    "siblings": "it is compared with the node that it leaves, in units of the spread at that noise level",
}
BRANCHES = "it is compared with the other branches of the same node"
"""What the node that a step leaves stands for where it is worth the mean of its branches."""
CONTRAST = {"nft": "DiffusionNFT's contrast (nft)"}
WORTH = {
    "leaves": "A node is worth the mean reward of the pictures that grow from it.",
    "ode": "A node is worth the reward of the picture that follows from it when no more noise is added.",
    "predicted_x0": "A node is worth the reward of the picture that is predicted there.",
}


def story(record: TreeRecord) -> list[Paragraph]:
    """What was drawn, how it scored, what that says about the steps, and what the update made of it.

    Args:
        record: one prompt's tree.

    Returns:
        Paragraphs in the order in which things happened; plain text with references to nodes.
    """
    given = sums(record)
    write = (drawn, scored, decision, credit, contrast, update, idle, reckoning)
    written = [paragraph(given) for paragraph in write]
    return [paragraph for paragraph in written if paragraph is not None and paragraph.sentences]


def scored(given: Sums) -> Paragraph | None:
    """How many passed, the best and the worst, failures."""
    leaves, found = given.drawn_leaves, given.scored
    told: list[Sentence] = []
    if not found:
        return Paragraph("scored", "How it scored", [sentence("No picture has a reward.")] if leaves else [])
    judged = [given.passed(node) for node in leaves if given.passed(node) is not None]
    if judged:
        told.append(sentence(f"{sum(map(bool, judged))} of {len(judged)} passed {given.verdict}."))
    best, worst = found[0], found[-1]
    if total(best) - total(worst) <= NOTHING:
        told.append(
            sentence(f"All {len(found)} have the same reward, {three(total(best))}: none is better than another.")
        )
    else:
        mean = sum(map(total, found)) / len(found)
        told.append(
            sentence(
                f"Rewards go from {three(total(worst))} (", Ref(worst.id, given.names[worst.id]),
                f") to {three(total(best))} (", Ref(best.id, given.names[best.id]), f"), {three(mean)} on average.",
            )
        )  # fmt: skip
    if failed := len(leaves) - len(found):
        told.append(
            sentence(f"{counted(failed, 'picture')} could not be scored and {'is' if failed == 1 else 'are'} left out.")
        )
    return Paragraph("scored", "How it scored", told)


def decision(given: Sums) -> Paragraph | None:
    """The split whose branches differ most in value."""
    splits = [(worth, node) for node, worth in ((node, _siblings(given, node)) for node in given.record.nodes) if worth]
    if not splits:
        return None
    title = "Which decision mattered most"
    worth, node = max(splits, key=lambda split: (_gap(split[0]), _asked(split[0])))
    best, worst = worth[0], worth[-1]
    if _gap(worth) <= NOTHING:
        return Paragraph(
            "decision", title, [sentence("None: wherever a path split, its branches were worth the same.")]
        )
    sigma = level(given.record.sigmas[best.step or 0])
    start = "the starting noise " if node.parent is None else "the half-finished picture "
    one, other = ("one branch", "the other") if len(worth) == 2 else (f"the best of {len(worth)} branches", "the worst")
    ended = _ended(given, best)
    told = [
        sentence(
            f"The split at noise level {sigma}: from {start}", Ref(node.id, given.names[node.id]), f", {one}, ",
            Ref(best.id, given.names[best.id]), f", {ended} {three(best.value)} and {other}, ",
            Ref(worst.id, given.names[worst.id]), f", at {three(worst.value)}.",
        ),
        *([sentence(lacks)] if (lacks := lacking(given, best, worst)) else []),
        sentence(_consequence(given, best, worst)),
    ]  # fmt: skip
    roots = [root for root in given.record.nodes if root.parent is None and root.drawn and known(root.value)]
    if len(roots) > 1 and given.record.rule.get("reward") in ("incremental", "turning_point"):
        roots.sort(key=lambda root: -(root.value or 0.0))
        if roots[0].value != roots[-1].value:
            told.append(
                sentence(
                    "The starting noises differ too: ", Ref(roots[0].id, given.names[roots[0].id]),
                    f" is worth {three(roots[0].value)} and ", Ref(roots[-1].id, given.names[roots[-1].id]),
                    f" {three(roots[-1].value)}. They are drawn at random, so no step gets credit for that.",
                )
            )  # fmt: skip
    return Paragraph("decision", title, told, [best.id, worst.id])


def lacking(given: Sums, best: TreeNode, worst: TreeNode) -> str:
    """What the pictures below one branch lack against the other's, by the parts of their rewards; "" if nothing."""
    first, second = given.parts_below(best), given.parts_below(worst)
    gaps = {name: first[name] - second[name] for name in first if name in second}
    largest = sorted((name for name in gaps if gaps[name] > LACK), key=lambda name: -gaps[name])[:MOST]
    told = [f"{name} ({three(second[name])} against {three(first[name])})" for name in largest]
    return f"What the second lacks: {', '.join(told)}." if told else ""


def _siblings(given: Sums, node: TreeNode) -> list[TreeNode]:
    """Children with a value, best first; [] where fewer than two have one."""
    below = [given.record.nodes[child] for child in given.children.get(node.id, ())]
    below = [child for child in below if child.drawn and known(child.value)]
    return sorted(below, key=lambda child: -(child.value or 0.0)) if len(below) > 1 else []


def _gap(worth: Sequence[TreeNode]) -> float:
    return (worth[0].value or 0.0) - (worth[-1].value or 0.0)


def _asked(worth: Sequence[TreeNode]) -> float:
    """How far apart the advantages of the best and the worst are: among equal gaps, the one that is pushed hardest."""
    return abs((worth[0].advantage or 0.0) - (worth[-1].advantage or 0.0))


def _ended(given: Sums, node: TreeNode) -> str:
    if node.leaf is not None:
        return "ended at"
    if given.record.rule.get("value", "leaves") != "leaves":
        return "stood at"
    return "ended, on average, at" if len(given.usable_below(node)) > 1 else "ended at"


def _consequence(given: Sums, best: TreeNode, worst: TreeNode) -> str:
    if not pushed(best) and not pushed(worst):
        pulls = given.pulled(best) and given.pulled(worst)
        return f"Neither of the two steps {'is pushed' if pulls else 'trains'}."
    if not pushed(best) or not pushed(worst):
        verb = "is pushed" if given.pulled(best) or given.pulled(worst) else "trains"
        return f"Of the two steps only the one to the {'first' if pushed(best) else 'second'} {verb}."
    out, updates = skipped(given.record)
    if out and out >= updates:
        return "A guard left the update out: it pushed towards neither."
    if push(best.advantage) > 0 > push(worst.advantage):
        return "The update pushes towards the first and away from the second."
    credits = f"{share(best.advantage)} and {share(worst.advantage)}"
    return f"Compared with the prompt's other steps the two have advantages of {credits}; the update goes by these."


def credit(given: Sums) -> Paragraph | None:
    """The steps with the largest advantages, and turning points."""
    rule, edges = given.record.rule, given.edges
    if not edges or not rule.get("edges"):
        return None
    reward = str(rule.get("reward"))
    told: list[Sentence] = []
    paths = reward == "outcome" and max(given.record.branching.values(), default=1) == 1
    if paths:  # the steps of a chain have the same credit: its picture stands for all that train
        named = [leaf for leaf in given.drawn_leaves if any(edge.trained for edge in given.path(leaf))]
    else:
        named = [edge for edge in edges if edge.trained]
    ranked = sorted(named, key=lambda edge: -(edge.advantage or 0.0))
    up = [edge for edge in ranked if push(edge.advantage) > 0][:MOST]
    down = [edge for edge in reversed(ranked) if push(edge.advantage) < 0][:MOST]
    what = "paths" if paths else "steps"
    for steps, direction in ((up, "up"), (down, "down")):
        if steps:
            listed = joined([(Ref(edge.id, given.names[edge.id]), f" ({share(edge.advantage)})") for edge in steps])
            told.append(
                sentence(f"Pushed {direction} most: the {what[:-1] if len(steps) == 1 else what} to ", *listed, ".")
            )
    return Paragraph("credit", "Which steps were pushed", told + turning(given))


def reckoning(given: Sums) -> Paragraph | None:
    """By which rule steps are credited."""
    rule = given.record.rule
    if not given.edges or not rule.get("edges"):
        return None
    reward, told = str(rule.get("reward")), []
    if reward in ("incremental", "turning_point") and rule.get("value") in WORTH:
        told.append(sentence(WORTH[str(rule["value"])]))
    compared = COMPARED.get("outcome" if reward == "outcome" else str(rule.get("normalise")))
    if rule.get("normalise") == "siblings" and rule.get("value", "leaves") == "leaves":
        compared = BRANCHES
    if reward in CREDIT and compared:
        told.append(sentence(f"{CREDIT[reward]}; {compared}."))
    if rule.get("fusion") == "path_probability" and (rule.get("value") == "leaves" or reward in ("fused", "outcome")):
        told.append(sentence("In these means the pictures of likelier paths count for more."))
    return Paragraph("reckoning", "How credit is given here", told)


def turning(given: Sums) -> list[Sentence]:
    """Turning points, the largest in detail, those that train before those that do not."""
    turns = [edge for edge in given.edges if edge.turning and known(given.step_reward(edge))]
    turns.sort(key=lambda edge: (not pushed(edge), -abs(given.step_reward(edge) or 0.0)))
    told = []
    for edge in turns[:TURNS]:
        step, above = given.step_reward(edge) or 0.0, given.parent(edge)
        before = given.step_reward(above) if above is not None else None
        way, end = ("up", "higher") if step > 0 else ("down", "lower")
        first = "its first step already goes" if before is None else f"after a step of {signed(before)} it goes"
        whose = "it" if len(given.leaves_below(edge)) == 1 else "at least one path through it"
        amount = f", {signed(edge.credited)}" if known(edge.credited) else ""
        then = f"{amount}." if pushed(edge) else f"{amount}, but it does not train here."
        told.append(
            sentence(
                "At ", Ref(edge.id, given.names[edge.id]), f" ◆ the path turns: {first} {way} ({signed(step)}) and "
                f"{whose} ends {end} than it began, so there the step is credited with the whole way there{then}",
            )
        )  # fmt: skip
    if len(turns) > TURNS:
        told.append(sentence(f"There are {len(turns)} turning points in all."))
    return told


def contrast(given: Sums) -> Paragraph | None:
    """What finished pictures teach, where they train."""
    if not given.record.rule.get("samples"):
        return None
    trained = [node for node in given.drawn_leaves if node.leaf and node.leaf.trained and known(node.leaf.advantage)]
    trained.sort(key=lambda node: -_own(node))
    better, worse = [n for n in trained if push(_own(n)) > 0], [n for n in trained if push(_own(n)) < 0]
    told = []
    if better or worse:
        how = CONTRAST.get(str(given.record.rule.get("objective")), "contrast")
        told.append(
            sentence(
                f"The finished pictures train by {how}: towards the {len(better)} with positive "
                f"advantage, away from the {len(worse)} with negative."
            )
        )
    if better and worse:
        first, last = better[0], worse[-1]
        told.append(
            sentence(
                "Furthest towards ", Ref(first.id, given.names[first.id]), f" ({share(_own(first))}), furthest from ",
                Ref(last.id, given.names[last.id]), f" ({share(_own(last))}).",
            )
        )  # fmt: skip
    return Paragraph("contrast", "What the pictures teach", told)


def _own(node: TreeNode) -> float:
    return (node.leaf.advantage if node.leaf else None) or 0.0
