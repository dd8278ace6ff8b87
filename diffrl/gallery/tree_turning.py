"""Turning points in words: the steps that were marked, and the rule by which they were (TP-GRPO, arXiv 2602.06422)."""

from __future__ import annotations

import statistics
from itertools import combinations
from typing import NamedTuple

from diffrl.gallery.tree_numbers import known, signed
from diffrl.gallery.tree_sentences import Ref, Sentence, joined, sentence
from diffrl.gallery.tree_words import Sums, pushed, total
from diffrl.trees.record import TreeNode

TURNS = 2
"""How many turning points are told one by one."""
FEW = 4
"""Paths through a step up to which each is told."""
MANY = 10
"""Paths that turn up to which it is worked out which of them were kept."""
NEAR = 1e-5
"""Difference up to which two means of rewards are the same: float32, for rewards of about 1."""


class Shares(NamedTuple):
    """The paths through a turning point, by the pictures in which they end, and what the step counts as on each.

    Args:
        turned: they turn, and the step counts as its whole way to the end.
        dropped: they turn, but balancing left them out.
        others: they do not.
        counts: reward of the step by the id of the picture; their mean is what the step was credited with.
    """

    turned: list[TreeNode]
    dropped: list[TreeNode]
    others: list[TreeNode]
    counts: dict[int, float]


def turning(given: Sums) -> list[Sentence]:
    """Turning points, the largest in detail, those that train before those that do not; then what they count for."""
    turns = [edge for edge in given.edges if edge.turning and known(given.step_reward(edge))]
    turns.sort(key=lambda edge: (not pushed(edge), -abs(given.step_reward(edge) or 0.0)))
    told, open_ = [], False
    for edge in turns[:TURNS]:
        shares = shared_out(given, edge)
        told.append(_turn(given, edge) if shares is None else _explained(given, edge, shares))
        open_ = open_ or (shares is None and paths_through(given, edge) > 1)
    if len(turns) > TURNS:
        told.append(sentence(f"There are {len(turns)} turning points in all."))
    if turns:
        several = ", one that several paths share as the mean over them" if open_ else ""
        kept = "; as many turns up as down are kept, the largest ones" if given.record.rule.get("balance") else ""
        told.append(sentence(f"Where a path turns, a step counts as its whole way to the end{several}{kept}."))
    return told


def rule(given: Sums) -> str:
    """The whole rule, as one entry of a glossary."""
    named = given.record.rule
    goes_on = ", and the rest of the path goes on the same way" if named.get("constraint") else ""
    text = (
        "A step that sets a path's direction: the path ends up (or down) overall, this step goes that way, as the "
        f"first of the path or right after one against it{goes_on}. On that path it counts as the whole way from "
        "there to the end instead of what it adds itself."
    )
    if named.get("balance"):
        text += " Of this prompt's turns as many up as down are kept: the smallest of the rest count as any other step."
    return f"{text} A step that several paths share gets the mean over its paths, of which only some may turn."


def paths_through(given: Sums, edge: TreeNode) -> int:
    """How many paths to pictures that count a step lies on."""
    return len(given.usable_below(edge))


def shared_out(given: Sums, edge: TreeNode) -> Shares | None:
    """Which paths through a turning point turn, and what the step counts as on each.

    By the rule of diffrl/functional/turning_points.py, from the values of the record. Which turns balancing left out is
    not recorded: told is the only choice of them whose mean is what the step was credited with.

    Args:
        given: the tree.
        edge: the step that ends in this node.

    Returns:
        None where paths are weighed, something is not known, or no choice or several come to that number.
    """
    step, above = given.step_reward(edge), given.parent(edge)
    leaves = sorted(given.usable_below(edge), key=lambda leaf: leaf.id)
    if step is None or above is None or above.value is None or edge.credited is None or not known(edge.credited):
        return None
    if not leaves or given.record.rule.get("fusion", "uniform") != "uniform":
        return None
    turns = [leaf for leaf in leaves if _turns(given, edge, leaf)]
    if len(turns) > MANY:
        return None
    least = 1 if given.record.rule.get("balance") else max(1, len(turns))
    near, found = NEAR * max(1.0, *(abs(total(leaf)) for leaf in leaves)), []
    for size in range(least, len(turns) + 1):
        for kept in combinations([leaf.id for leaf in turns], size):
            counts = {leaf.id: total(leaf) - above.value if leaf.id in kept else step for leaf in leaves}
            if abs(statistics.fmean(counts.values()) - edge.credited) <= near:
                found.append((kept, counts))
    if len(found) != 1:
        return None
    kept, counts = found[0]
    return Shares(
        [leaf for leaf in turns if leaf.id in kept],
        [leaf for leaf in turns if leaf.id not in kept],
        [leaf for leaf in leaves if leaf not in turns],
        counts,
    )


def mean_of_paths(given: Sums, edge: TreeNode) -> str:
    """Credit of a turning point as a sum: "(+0.510 + 0.073) / 2, over the paths to 1ba ◆ and 1bb"; "" if unclear."""
    shares = shared_out(given, edge)
    if shares is None or not 1 < len(shares.counts) <= FEW:
        return ""
    names = given.names
    ends = [f"{names[id]} ◆" if any(leaf.id == id for leaf in shares.turned) else names[id] for id in shares.counts]
    amounts = [signed(count) for count in shares.counts.values()]
    rest = "".join(f" {text[0]} {text[1:]}" if text[0] in "+−" else f" + {text}" for text in amounts[1:])
    return f"({amounts[0]}{rest}) / {len(amounts)}, over the paths to {', '.join(ends[:-1])} and {ends[-1]}"


def _turns(given: Sums, edge: TreeNode, leaf: TreeNode) -> bool:
    """Whether a path turns at a step, before balancing."""
    above = given.parent(edge)
    start, step = given.path(leaf)[0].value, given.step_reward(edge)
    if above is None or start is None or step is None or edge.value is None:
        return False
    way = _sign(total(leaf) - start)
    before = given.step_reward(above)
    first = above.parent is None or (before is not None and _sign(before) == -way)
    goes_on = not given.record.rule.get("constraint") or _sign(total(leaf) - edge.value) == way
    return way != 0 and _sign(step) == way and first and goes_on


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _explained(given: Sums, edge: TreeNode, shares: Shares) -> Sentence:
    """A turning point path by path: what it adds itself, what its paths come to, and their mean."""
    step, above, constraint = given.step_reward(edge) or 0.0, given.parent(edge), given.record.rule.get("constraint")
    before, count = given.step_reward(above) if above is not None else None, len(shares.counts)
    way, end = ("up", "higher") if step > 0 else ("down", "lower")
    start = "it " if before is None else f"after a step of {signed(before)} it "
    many = len(shares.turned) > 1
    goes = f"go{'' if many else 'es'} on {way}" if constraint else f"end{'' if many else 's'} {end} than it began"
    credit, ref = signed(edge.credited), Ref(edge.id, given.names[edge.id])
    idle = "" if pushed(edge) else ", but it does not train here"
    head: list[str | Ref] = [
        ref,
        f" ◆ turns {way}: {start}adds {'only ' if constraint else ''}{signed(step)} itself, but ",
    ]
    if count == 1:
        return sentence(*head, f"its path {goes}, {credit} in all: that is its credit{idle}.")
    if count > FEW:
        whole = signed(statistics.fmean(shares.counts[leaf.id] for leaf in shares.turned))
        rest = f"; the other {count - len(shares.turned)} keep {signed(step)}" if count > len(shares.turned) else ""
        text = (
            f"{len(shares.turned)} of its {count} paths {goes}, {whole} in all{' on average' if many else ''}{rest}. "
        )
        return sentence(*head, f"{text}The mean, {credit}, is the credit of ", ref, f"{idle}.")
    amounts = [signed(shares.counts[leaf.id]) for leaf in shares.turned]
    text = f" {goes}, {' and '.join([', '.join(amounts[:-1]), amounts[-1]] if many else amounts)} in all"
    parts: list[str | Ref] = [*head, f"its path{'s' * many} to ", *_ends(given, shares.turned), text]
    for leaves, one, more in (
        (shares.dropped, "does too, but that turn was not kept, so it counts", "do too, but those turns were not kept, "
         "so they count"),
        (shares.others, "does not and keeps", "do not and keep"),
    ):  # fmt: skip
        if leaves:
            several = len(leaves) > 1
            verb = f" {more if several else one} {signed(step)}"
            parts += [f"; the path{'s' * several} to ", *_ends(given, leaves), verb]
    return sentence(*parts, f". The mean, {credit}, is the credit of ", ref, f"{idle}.")


def _ends(given: Sums, leaves: list[TreeNode]) -> list[str | Ref]:
    return list(joined([(Ref(leaf.id, given.names[leaf.id]),) for leaf in leaves]))


def _turn(given: Sums, edge: TreeNode) -> Sentence:
    """A turning point of which it cannot be told what its paths count as."""
    step, above = given.step_reward(edge) or 0.0, given.parent(edge)
    before = given.step_reward(above) if above is not None else None
    way, end = ("up", "higher") if step > 0 else ("down", "lower")
    first = "its first step" if before is None else f"after a step of {signed(before)} it"
    adds = f"{first} adds {signed(step)}"
    paths = paths_through(given, edge)
    whose = "" if paths <= 1 else f"at least one of the {paths} paths through it "
    goes = f"goes on {way}" if given.record.rule.get("constraint") else f"ends {end} than it began"
    counts = f", so the step is credited with {signed(edge.credited)} instead" if known(edge.credited) else ""
    idle = "" if pushed(edge) else ", but it does not train here"
    ref = Ref(edge.id, given.names[edge.id])
    return sentence("At ", ref, f" ◆ a path turns {way}: {adds} and {whose}{goes}{counts}{idle}.")
