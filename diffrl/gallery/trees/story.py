"""Why the policy changed, in plain words: what one tree's record says, and nothing that it does not.

`story` gives paragraphs of sentences; a sentence is text and references to nodes, so that pages can link them. Each
function below writes one paragraph, or none where there is nothing to tell.
"""

from __future__ import annotations

from diffrl.gallery.trees.decision import decision
from diffrl.gallery.trees.drawn import drawn
from diffrl.gallery.trees.idle import idle
from diffrl.gallery.trees.numbers import NOTHING, counted, known, push, share, three
from diffrl.gallery.trees.sentences import Paragraph, Ref, Sentence, joined, sentence
from diffrl.gallery.trees.splits import lesson, train
from diffrl.gallery.trees.turning import turning
from diffrl.gallery.trees.update import update
from diffrl.gallery.trees.words import WORTH, Sums, sums, total
from diffrl.trees.record import TreeNode, TreeRecord

MOST = 3
"""How many steps a sentence names."""
CREDIT = {
    "outcome": "A step shares the credit of the pictures that it leads to",
    "fused": "A step is worth the mean reward of the pictures that it leads to",
    "incremental": "A step earns what it adds to the worth of its node",
    "turning_point": "A step earns what it adds to the worth of its node, at a turning point the whole way to the end",
}
COMPARED = {
    "outcome": "each picture is compared with the others of this prompt",
    "group": "it is compared with all other steps of this prompt",
    "depth": "it is compared with this prompt's other steps at the same noise level",
    "siblings": "it is compared with the node that it leaves, in units of the spread at that noise level",
}
BRANCHES = "it is compared with the other branches of the same node"
"""What the node that a step leaves stands for where it is worth the mean of its branches."""
TILTED = (
    "Each picture is compared with the others of this prompt; at a split, pictures of different branches are compared "
    "with each other."
)
CONTRAST = {"nft": "DiffusionNFT's contrast (nft)"}


def story(record: TreeRecord) -> list[Paragraph]:
    """What was drawn, how it scored, what that says about the steps, and what the update made of it.

    Args:
        record: one prompt's tree.

    Returns:
        Paragraphs in the order in which things happened; plain text with references to nodes.
    """
    given = sums(record)
    write = (drawn, scored, decision, credit, contrast, lesson, update, idle, reckoning)
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
    if train(given):
        return Paragraph("reckoning", "How credit is given here", [sentence(TILTED)])
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
