"""The last paragraphs of a tree's story: what the update made of the steps, and what trained nothing."""

from __future__ import annotations

from diffrl.gallery.tree_sentences import Paragraph, Ref, sentence
from diffrl.gallery.tree_words import NOTHING, Sums, counted, known, push, tiny, total


def update(given: Sums) -> Paragraph | None:
    """Whether steps became more or less likely, as their advantages asked."""
    title, edges = "What the update did", given.edges
    measured = [edge for edge in edges if known(edge.log_ratio)]
    if not edges:
        text = "No noise was added on the way, so there is no step whose likelihood could be compared before and after."
        return Paragraph("update", title, [sentence(text)])
    if not measured:
        return Paragraph("update", title, [sentence("How likely the steps were after it was not recorded.")])
    asked = [edge for edge in measured if edge.trained and push(edge.advantage)]
    up = [edge for edge in asked if push(edge.advantage) > 0]
    down = [edge for edge in asked if push(edge.advantage) < 0]
    rose, fell = (sum((e.log_ratio or 0) > 0 for e in up), sum((e.log_ratio or 0) < 0 for e in down))
    told = []
    if up:
        told.append(sentence(f"Of {counted(len(up), 'step')} with positive advantage {rose} became more likely."))
    if down:
        told.append(sentence(f"Of {counted(len(down), 'step')} with negative advantage {fell} became less likely."))
    if asked and rose + fell < len(asked):
        fewer = "Most went the other way: one" if 2 * (rose + fell) < len(asked) else "One"
        told.append(
            sentence(f"{fewer} network serves all steps and prompts of the iteration, and cannot follow each of them.")
        )
    if not asked:
        more = sum((edge.log_ratio or 0) > 0 for edge in measured)
        told.append(sentence(f"No step asked for a change; of {len(measured)} measured, {more} became more likely."))
    most = max(measured, key=lambda edge: abs(edge.log_ratio or 0))
    if most.log_ratio:
        told.append(
            sentence(
                "It changed the likelihood of the step to ", Ref(most.id, given.names[most.id]),
                f" most: {tiny(most.log_ratio)} per dimension.",
            )
        )  # fmt: skip
    return Paragraph("update", title, told)


def idle(given: Sums) -> Paragraph | None:
    """What trains nothing, and why."""
    rule, told = given.record.rule, []
    undrawn = sum(not node.drawn for node in given.leaves)
    audits = sum(node.leaf.audit for node in given.drawn_leaves if node.leaf)
    if undrawn:
        told.append(f"{counted(undrawn, 'candidate')} {_was(undrawn)} only explored.")
    if audits:
        told.append(f"{counted(audits, 'picture')} {_was(audits)} drawn only to check the ranking.")
    told += _idle_steps(given)
    samples = [node for node in given.scored if node.leaf and not node.leaf.audit]
    if rule.get("samples") and (out := sum(not (node.leaf and node.leaf.trained) for node in samples)):
        told.append(f"{counted(out, 'scored picture')} took no part in the contrast.")
    if rule.get("samples") and (
        mean := sum(bool(n.leaf and n.leaf.trained and not push(n.leaf.advantage)) for n in samples)
    ):
        told.append(f"{counted(mean, 'picture')} with advantage 0 {'pulls' if mean == 1 else 'pull'} neither way.")
    return Paragraph("idle", "What does not train", [sentence(text) for text in told])


def _idle_steps(given: Sums) -> list[str]:
    edges = given.edges
    told: list[str] = []
    if not edges:
        return told
    if not given.record.rule.get("edges"):
        return [f"The {counted(len(edges), 'step')} here: with this objective only finished pictures train."]
    left_out = sum(not edge.trained for edge in edges)
    level_ones = sum(edge.trained and not push(edge.advantage) for edge in edges)
    if left_out:
        told.append(f"{left_out} of {counted(len(edges), 'step')} took no part in the gradient.")
    if lone := _lone_splits(given):
        told.append(
            f"At {counted(lone, 'split')} only one branch was drawn again, which leaves nothing to compare it with."
        )
    equal = len(given.scored) > 1 and total(given.scored[0]) - total(given.scored[-1]) <= NOTHING
    if level_ones and equal and level_ones + left_out == len(edges):
        told.append("Equal rewards give no credit: all advantages are 0, and this prompt's steps teach nothing.")
    elif level_ones:
        told.append(f"{counted(level_ones, 'step')} with advantage 0 {_was(level_ones)} not pushed.")
    return told


def _lone_splits(given: Sums) -> int:
    """Splits of which one branch is left, where credit rests on the difference between branches."""
    rule = given.record.rule
    if rule.get("normalise") != "siblings" and (
        rule.get("reward") not in ("incremental", "turning_point") or rule.get("value") != "leaves"
    ):
        return 0
    branches = [
        [given.record.nodes[child].drawn for child in below] for key, below in given.children.items() if key is not None
    ]
    return sum(len(drawn) > 1 and sum(drawn) == 1 for drawn in branches)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
