"""What the nodes of a tree are called, and the small sums that figure, panel and story share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffrl.gallery.trees.facts import Ref
from diffrl.gallery.trees.numbers import known, likelier, number, push, tiny, weak
from diffrl.trees.record import TreeNode, TreeRecord

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROUNDING = {"bfloat16": 2e-4}
"""Size up to which a log-ratio per dimension is rounding, by the network's dtype: measured over updates that change
nothing, the largest was 1.2e-4."""
EXACT = 1e-6
"""The same in float32, and where the dtype is not known."""
SUMMED = ("strict", "partial")
"""Parts of a reward that sum up its other parts."""
NODE = re.compile(r"\bnode ([0-9]{1,9})\b")


@dataclass(frozen=True)
class Sums:
    """A record with what is derived from it again and again.

    Args:
        record: the tree.
        names: of the nodes by id: "2" is the second starting noise, "2a" the first branch of its first split, "2a.3"
            the end of step 3 on that branch where nothing splits.
        children: ids by the id of their parent.
        verdict: name of the reward that only says passed (1) or failed (0), None if there is none.
    """

    record: TreeRecord
    names: Sequence[str]
    children: Mapping[int | None, Sequence[int]]
    verdict: str | None

    @property
    def leaves(self) -> list[TreeNode]:
        """All nodes with a sample or a candidate."""
        return [node for node in self.record.nodes if node.leaf is not None]

    @property
    def drawn_leaves(self) -> list[TreeNode]:
        """Leaves that exist in the training precision, audits and failures included."""
        return [node for node in self.leaves if node.drawn]

    @property
    def scored(self) -> list[TreeNode]:
        """Drawn leaves with a reward, best first; equal ones in the order of the record."""
        found = [node for node in self.drawn_leaves if node.leaf and known(node.leaf.total)]
        return sorted(found, key=lambda node: -total(node))

    @property
    def samples(self) -> list[TreeNode]:
        """Drawn leaves that were meant to train: all but those drawn only to check the ranking."""
        return [node for node in self.drawn_leaves if node.leaf and not node.leaf.audit]

    @property
    def edges(self) -> list[TreeNode]:
        """Steps in the training precision, by the node in which they end."""
        return [node for node in self.record.nodes if node.parent is not None and node.drawn]

    def ref(self, node: int) -> Ref:
        """A reference to a node by its id."""
        return Ref(node, self.names[node])

    def parent(self, node: TreeNode) -> TreeNode | None:
        """The node above; None of a root."""
        return None if node.parent is None else self.record.nodes[node.parent]

    def path(self, node: TreeNode) -> list[TreeNode]:
        """From the root to the node."""
        found = [node]
        while found[-1].parent is not None:
            found.append(self.record.nodes[found[-1].parent])
        return found[::-1]

    def step_reward(self, node: TreeNode) -> float | None:
        """What the step that ends in the node added to the value; None at roots and where a value is unknown."""
        above = self.parent(node)
        if above is None or not known(node.value) or not known(above.value):
            return None
        return node.value - above.value  # type: ignore[operator]

    def leaves_below(self, node: TreeNode) -> list[TreeNode]:
        """Drawn leaves that grow from a node, the node itself among them."""
        found, waiting = [], [node.id]
        while waiting:
            one = self.record.nodes[waiting.pop()]
            found += [one] if one.leaf is not None and one.drawn else []
            waiting += self.children.get(one.id, ())
        return found

    def usable_below(self, node: TreeNode) -> list[TreeNode]:
        """Of these, the ones that a value is made of: scored, and no audits."""
        return [
            leaf for leaf in self.leaves_below(node) if leaf.leaf and not leaf.leaf.audit and known(leaf.leaf.total)
        ]

    def parts_below(self, node: TreeNode) -> dict[str, float]:
        """Means of the parts of rewards over the usable images below a node, by the part's own name.

        Rewards that share a part ("shapes/count", "shapes_strict/count") name it once; what sums the others up
        ("strict", "partial") is no part.
        """
        found: dict[str, list[float]] = {}
        for leaf in self.usable_below(node):
            own: dict[str, float] = {}
            for name, raw in (leaf.leaf.rewards if leaf.leaf else {}).items():
                part = name.partition("/")[2]
                if part and part not in SUMMED and raw is not None:
                    own.setdefault(part, raw)
            for part, raw in own.items():
                found.setdefault(part, []).append(raw)
        return {part: sum(values) / len(values) for part, values in found.items()}

    def reason(self, node: TreeNode) -> str | None:
        """Why a leaf was drawn again, with nodes called as the figure calls them; None if it was not."""
        if node.leaf is None or node.leaf.chosen is None:
            return None
        names = self.names
        return NODE.sub(lambda m: names[int(m[1])] if int(m[1]) < len(names) else m[0], node.leaf.chosen)

    def pulled(self, node: TreeNode) -> bool:
        """Whether a step is in the loss only by its distance to the starting model: it has no credit."""
        return self.pulls and node.trained and not push(node.advantage)

    @property
    def pulls(self) -> bool:
        """Whether steps are pulled to the starting model; beside nft they have no reference."""
        return self.record.rule.get("objective") == "grpo" and number(self.record.rule.get("kl")) > 0

    def pulled_sample(self, node: TreeNode) -> bool:
        """The same of an image that trains by contrast."""
        leaf = node.leaf
        return bool(number(self.record.rule.get("kl")) > 0 and leaf and leaf.trained and not push(leaf.advantage))

    def passed(self, node: TreeNode) -> bool | None:
        """Whether a leaf's image passed; None where there is no such reward or it failed to be scored."""
        raw = node.leaf.rewards.get(self.verdict) if node.leaf and self.verdict else None
        return None if not known(raw) else raw == 1


def sums(record: TreeRecord) -> Sums:
    """A record with its names, children and verdict."""
    children: dict[int | None, list[int]] = {}
    for node in record.nodes:
        children.setdefault(node.parent, []).append(node.id)
    return Sums(record, _names(record), children, verdict(record))


def total(node: TreeNode) -> float:
    """The reward of a leaf that is known to have one."""
    assert node.leaf is not None and node.leaf.total is not None
    return node.leaf.total


def verdict(record: TreeRecord) -> str | None:
    """The reward that is 1 for a pass and 0 for a failure.

    A whole reward goes before a part of one ("shapes/strict"). A reward that happens to be 1 (or 0) everywhere counts
    only if it is called strict: of another name it may as well be a scale whose other values did not occur.
    """
    values: dict[str, set[float]] = {}
    for node in record.nodes:
        if node.leaf is not None and node.drawn:
            for name, raw in node.leaf.rewards.items():
                if raw is not None:
                    values.setdefault(name, set()).add(raw)
    binary = [name for name, seen in values.items() if seen <= {0.0, 1.0}]
    strict = [name for name in binary if name.endswith("strict")]
    whole = [name for name in strict if "/" not in name]
    both = [name for name in binary if "/" not in name and values[name] == {0.0, 1.0}]
    return next(iter([*whole, *both, *strict]), None)


def _names(record: TreeRecord) -> list[str]:
    """See `Sums.names`."""
    names: list[str] = []
    stems: list[str] = []
    for node in record.nodes:
        if node.parent is None:
            stem = name = str(node.root + 1)
        elif record.branching.get(node.step or 0, 1) > 1:
            letter = LETTERS[node.child] if node.child < len(LETTERS) else f"({node.child + 1})"
            stem = name = stems[node.parent] + letter
        else:
            stem = stems[node.parent]
            name = f"{stem}.{(node.step or 0) + 1}"
        stems.append(stem)
        names.append(name)
    return names


def pushed(node: TreeNode) -> bool:
    """Whether a step trains for its credit; one whose advantage is 0 does not, be it exact or by rounding."""
    return node.trained and push(node.advantage) != 0


def rounding(record: TreeRecord) -> float:
    """Size up to which a log-ratio of this tree says nothing."""
    return ROUNDING.get(str(record.rule.get("dtype")), EXACT)


def skipped(record: TreeRecord) -> tuple[int, int]:
    """How many updates of the iteration a guard left out, and how many there were; 0 where that was not recorded."""
    return round(number(record.rule.get("skipped"))), round(number(record.rule.get("updates")))


def left_out(record: TreeRecord) -> bool:
    """Whether a guard left out every update."""
    out, updates = skipped(record)
    return bool(out) and out >= updates


def trains(given: Sums, node: TreeNode) -> str:
    """Whether a step trains: "yes", "no" or "only pulled to the starting model"."""
    return "yes" if pushed(node) else "only pulled to the starting model" if given.pulled(node) else "no"


def amount(given: Sums, ratio: float) -> str:
    """A change of a log-likelihood: "+0.0020 per dimension × 256 = +0.51, 1.7 times as likely"."""
    dimensions = number(given.record.rule.get("dimensions"))
    whole = ratio * dimensions
    return f"{tiny(ratio)} per dimension" + (
        f" × {dimensions:,.0f} = {tiny(whole)}, {likelier(whole)}" if whole else ""
    )


def change(given: Sums, node: TreeNode) -> str:
    """What the update did to a step's log-likelihood: "≈ 0" where that is rounding, a dash where it is not known."""
    ratio = node.log_ratio
    if ratio is None or not known(ratio):
        return tiny(None)
    return "≈ 0 per dimension" if 0 < abs(ratio) <= rounding(given.record) else amount(given, ratio)


def against(given: Sums, node: TreeNode) -> bool:
    """Whether a step that was clearly pushed went the other way."""
    moved = node.log_ratio or 0.0
    clear = pushed(node) and not weak(node.advantage) and abs(moved) > rounding(given.record)
    return clear and push(node.advantage) * moved < 0
