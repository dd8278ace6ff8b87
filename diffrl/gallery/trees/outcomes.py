"""What an update made of the paths to good and to bad pictures: the outcome, against which pushes are to be judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diffrl.gallery.trees.numbers import NOTHING, counted, known, likelier, push, three, tiny
from diffrl.gallery.trees.sentences import Ref, Sentence, sentence
from diffrl.gallery.trees.words import Sums, pushed, rounding, total, whole_change
from diffrl.trees.record import TreeNode


class Outcome(NamedTuple):
    """What is told of paths.

    Args:
        told: sentences, [] where there is nothing to add to what is told of the steps.
        astray: whether a path to a good picture became less likely, or one to a bad picture more, and is told.
    """

    told: list[Sentence]
    astray: bool


def outcomes(given: Sums, most: TreeNode | None = None) -> Outcome:
    """How many paths went as their pictures' advantages ask, and the strongest contradiction of either side.

    A path's change is the sum of the log-ratios of its steps. Nothing is told where a step of a counted path was not
    measured, and of paths of one step that was pushed as its picture asks only that of the best picture: the rest is
    told of the steps already.

    Args:
        given: the tree.
        most: the step whose change was told before.
    """
    paths = {node.id: _steps(given, node) for node in given.scored}
    asked = [node for node in given.scored if node.leaf and not node.leaf.audit and push(node.leaf.advantage)]
    asked = [node for node in asked if paths[node.id]]
    if not asked or not all(known(edge.log_ratio) for node in asked for edge in paths[node.id]):
        return Outcome([], False)
    change = {node.id: sum(edge.log_ratio or 0.0 for edge in paths[node.id]) for node in asked}
    bound = {node.id: rounding(given.record) * len(paths[node.id]) for node in asked}
    good, bad = ([node for node in asked if _way(node) == way] for way in (1, -1))
    fell = [node for node in good if change[node.id] < -bound[node.id]]
    rose = [node for node in bad if change[node.id] > bound[node.id]]
    best = max(fell, key=lambda node: (round(total(node), 6), -change[node.id]), default=None)
    worst = min(rose, key=lambda node: (round(total(node), 6), -change[node.id]), default=None)
    told: list[Sentence] = []
    if all(_same(paths[node.id], node) for node in asked):
        best, worst = best if best is not None and total(given.scored[0]) - total(best) <= NOTHING else None, None
    else:
        more = sum(change[node.id] > bound[node.id] for node in good)
        less = sum(change[node.id] < -bound[node.id] for node in bad)
        told.append(sentence(_counts(len(good), more, len(bad), less)))

    def amount(node: TreeNode) -> str:
        whole = [whole_change(given, edge) for edge in paths[node.id]]
        return f"{tiny(change[node.id])} per dimension" if None in whole else likelier(sum(one or 0.0 for one in whole))

    for node, end, which, likely in ((best, 0, "best", "less"), (worst, -1, "worst", "more")):
        if node is not None:
            known_already = paths[node.id] == [most]
            told.append(_contradiction(given, node, end, which, likely, "" if known_already else amount(node)))
    return Outcome(told, best is not None or worst is not None)


def _counts(good: int, more: int, bad: int, less: int) -> str:
    def to(count: int) -> str:
        return f"{counted(count, 'path')} to {'a picture' if count == 1 else 'pictures'}"

    if not good:
        return f"Of the {to(bad)} with negative advantage {less} became less likely."
    text = f"Of the {to(good)} with positive advantage {more} became more likely"
    return f"{text}; of the {bad} with negative {less} became less likely." if bad else f"{text}."


def _contradiction(given: Sums, node: TreeNode, end: int, which: str, likely: str, amount: str) -> Sentence:
    """That a path went against its picture's advantage."""
    ends, ref = given.scored, Ref(node.id, given.names[node.id])
    became = f"became {likely} likely{f' ({amount})' * bool(amount)}"
    if amount.endswith(f"{likely} likely"):
        became = f"became {amount}"
    alike = sum(abs(total(other) - total(ends[end])) <= NOTHING for other in ends)
    if abs(total(node) - total(ends[end])) <= NOTHING:
        name = f"the {which} picture" if alike == 1 else f"one of the {which} pictures"
        return sentence(f"Even the path to {name}, ", ref, f", {became}.")
    text = f"The {which} picture whose path became {likely} likely is "
    return sentence(text, ref, f", of reward {three(total(node))}{f' ({amount})' * bool(amount)}.")


def _steps(given: Sums, node: TreeNode) -> list[TreeNode]:
    return [edge for edge in given.path(node) if edge.parent is not None]


def _same(steps: Sequence[TreeNode], node: TreeNode) -> bool:
    """Whether a path is one step that was pushed as its picture asks."""
    return len(steps) == 1 and pushed(steps[0]) and push(steps[0].advantage) == _way(node)


def _way(node: TreeNode) -> int:
    return push(node.leaf.advantage) if node.leaf else 0
