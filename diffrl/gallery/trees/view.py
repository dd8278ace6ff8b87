"""One tree's record with what its page derives from it again and again: names, relatives, what counts, what trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from diffrl.gallery.trees.numbers import NOTHING, known, number, push
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
PULLED = "only pulled to the starting model"
"""What trains without credit: it is in the loss by its distance to the reference alone."""


@dataclass(frozen=True)
class TreeView:
    """A record with what is derived from it."""

    record: TreeRecord
    # of the nodes by id: "2" is the second starting noise, "2a" the first branch of its first split, "2a.3" the end
    # of step 3 on that branch where nothing splits
    names: Sequence[str]
    children: Mapping[int | None, Sequence[int]]  # ids by the id of their parent
    verdict: str | None  # name of the reward that only says passed (1) or failed (0), None if there is none

    # --- nodes

    @cached_property
    def leaves(self) -> list[TreeNode]:
        """All nodes with a sample or a candidate."""
        return [node for node in self.record.nodes if node.leaf is not None]

    @cached_property
    def sampled_leaves(self) -> list[TreeNode]:
        """Leaves that exist in the training precision, audits and failures included."""
        return [node for node in self.leaves if node.sampled]

    @cached_property
    def scored(self) -> list[TreeNode]:
        """Sampled leaves with a reward, best first; equal ones in the order of the record."""
        leaves = [node for node in self.sampled_leaves if node.leaf and known(node.leaf.total)]
        return sorted(leaves, key=lambda node: -total(node))

    @cached_property
    def samples(self) -> list[TreeNode]:
        """Sampled leaves that were meant to train: all but those sampled only to check the ranking."""
        return [node for node in self.sampled_leaves if node.leaf and not node.leaf.audit]

    @cached_property
    def edges(self) -> list[TreeNode]:
        """Steps in the training precision, by the node in which they end."""
        return [node for node in self.record.nodes if node.parent is not None and node.sampled]

    @cached_property
    def splits(self) -> list[TreeNode]:
        """Nodes whose split could have trained, those of the longest direction first."""
        nodes = [node for node in self.record.nodes if node.update_effect is not None]
        return sorted(nodes, key=lambda node: -number(node.update_effect and node.update_effect.size))

    def parent(self, node: TreeNode) -> TreeNode | None:
        """Return the node above; None of a root."""
        return None if node.parent is None else self.record.nodes[node.parent]

    def path(self, node: TreeNode) -> list[TreeNode]:
        """Return the nodes from the root to this one."""
        nodes = [node]
        while (above := self.parent(nodes[-1])) is not None:
            nodes.append(above)
        return nodes[::-1]

    def below(self, node: TreeNode) -> list[TreeNode]:
        """Return the children of a node."""
        return [self.record.nodes[child] for child in self.children.get(node.id, ())]

    def leaves_below(self, node: TreeNode) -> list[TreeNode]:
        """Return the sampled leaves that grow from a node, the node itself among them."""
        leaves, waiting = [], [node.id]
        while waiting:
            one = self.record.nodes[waiting.pop()]
            leaves += [one] if one.leaf is not None and one.sampled else []
            waiting += self.children.get(one.id, ())
        return leaves

    def usable_below(self, node: TreeNode) -> list[TreeNode]:
        """Return those of these that a value is made of: scored, and no audits."""
        below = self.leaves_below(node)
        return [leaf for leaf in below if leaf.leaf and not leaf.leaf.audit and known(leaf.leaf.total)]

    # --- numbers

    def step_reward(self, node: TreeNode) -> float | None:
        """Return what the step that ends in the node added to the value; None at roots and where one is unknown."""
        above = self.parent(node)
        if above is None or not known(node.value) or not known(above.value):
            return None
        return number(node.value) - number(above.value)

    def parts_below(self, node: TreeNode) -> dict[str, float]:
        """Return the mean parts of rewards over the usable images below a node, by the part's own name.

        Rewards that share a part ("shapes/count", "shapes_strict/count") name it once; what sums the others up
        ("strict", "partial") is no part.
        """
        values: dict[str, list[float]] = {}
        for leaf in self.usable_below(node):
            parts: dict[str, float] = {}
            for name, raw in (leaf.leaf.rewards if leaf.leaf else {}).items():
                part = name.partition("/")[2]
                if part and part not in SUMMED and raw is not None:
                    parts.setdefault(part, raw)
            for part, raw in parts.items():
                values.setdefault(part, []).append(raw)
        return {part: sum(several) / len(several) for part, several in values.items()}

    def passed(self, node: TreeNode) -> bool | None:
        """Return whether a leaf's image passed; None where there is no such reward or it failed to be scored."""
        raw = node.leaf.rewards.get(self.verdict) if node.leaf and self.verdict else None
        return None if not known(raw) else raw == 1

    def reason(self, node: TreeNode) -> str | None:
        """Return why a leaf was generated again, with nodes called as the figure calls them; None if it was not."""
        if node.leaf is None or node.leaf.chosen is None:
            return None
        names = self.names
        return NODE.sub(lambda m: names[int(m[1])] if int(m[1]) < len(names) else m[0], node.leaf.chosen)

    @property
    def rounding(self) -> float:
        """Size up to which a log-ratio of this tree says nothing."""
        return ROUNDING.get(str(self.record.rule.get("dtype")), EXACT)

    # --- what trained

    @property
    def trains_splits(self) -> bool:
        """Whether splits train in this tree, and not its steps."""
        return bool(self.record.rule.get("nodes")) and not self.record.rule.get("edges")

    @property
    def pulls_steps(self) -> bool:
        """Whether steps are pulled to the starting model; beside nft they have no reference."""
        return self.record.rule.get("objective") == "grpo" and number(self.record.rule.get("kl")) > 0

    @property
    def skipped(self) -> tuple[int, int]:
        """How many updates of the iteration a guard left out, and how many there were; 0 where not recorded."""
        return round(number(self.record.rule.get("skipped"))), round(number(self.record.rule.get("updates")))

    @property
    def left_out(self) -> bool:
        """Whether a guard left out every update."""
        out, updates = self.skipped
        return bool(out) and out >= updates

    def step_trains(self, node: TreeNode) -> str:
        """Return whether a step trains for its credit: "yes", "no" or `PULLED`; rounding is no credit."""
        return _trains(node.trained, bool(push(node.advantage)), self.pulls_steps)

    def sample_trains(self, node: TreeNode) -> str:
        """Return the same of an image that trains by contrast."""
        leaf = node.leaf
        if leaf is None:
            return "no"
        return _trains(leaf.trained, bool(push(leaf.advantage)), number(self.record.rule.get("kl")) > 0)

    def split_trains(self, node: TreeNode | None) -> str:
        """Return the same of a node's split: whether it has a direction to train along."""
        effect = node.update_effect if node is not None else None
        if effect is None:
            return "no"
        return _trains(effect.trained, number(effect.size) > 0 or not known(effect.size), True)

    def image_trains(self, leaf: TreeNode) -> bool:
        """Return whether an image trains: by itself, at a split or by one of its steps."""
        if self.record.rule.get("samples"):
            return self.sample_trains(leaf) == "yes"
        if self.trains_splits:
            return any(self.split_trains(node) == "yes" and push(weight) for node, weight in self.weights(leaf))
        return any(self.step_trains(edge) == "yes" for edge in self.path(leaf))

    def idle_split(self, node: TreeNode) -> str:
        """Return why a split does not train along a direction; "" where it does, and where splits do not train."""
        effect = node.update_effect
        if effect is None or self.split_trains(node) == "yes":
            return ""
        if not effect.trained and (number(effect.size) > 0 or not known(effect.size)):
            return "others of the prompt were chosen (objective.nodes)"
        if effect.children < 2:
            return "fewer than two of its branches hold an image that counts, which leaves nothing to compare"
        leaves = [self.record.nodes[id].leaf for id in effect.pulls]
        advantages = [leaf.advantage or 0.0 for leaf in leaves if leaf is not None]
        if max(advantages, default=0.0) - min(advantages, default=0.0) <= NOTHING:
            return "all images below have the same advantage, so none of them pulls"
        return "its images do not differ along their advantages"

    def weight(self, node: TreeNode) -> float | None:
        """Return a branch's weight in the direction of the split that it leaves; None where it was not compared."""
        above = self.parent(node)
        if above is None or above.update_effect is None:
            return None
        pulls = above.update_effect.pulls
        below = [pulls[leaf.id] for leaf in self.leaves_below(node) if leaf.id in pulls]
        return sum(below) if below else None

    def weights(self, leaf: TreeNode) -> list[tuple[TreeNode, float]]:
        """Return the splits on the way to an image, with its weight in the direction of each."""
        above = [(node, node.update_effect) for node in self.path(leaf)]
        return [(node, effect.pulls[leaf.id]) for node, effect in above if effect and leaf.id in effect.pulls]

    def strength(self, node: TreeNode) -> float | None:
        """Return what a step's line shows: its advantage; where splits train, its branch's weight."""
        return self.weight(node) if self.trains_splits else node.advantage


def _trains(trained: bool, credited: bool, has_reference: bool) -> str:
    if trained and (credited or has_reference):
        return "yes" if credited else PULLED
    return "no"


def tree_view(record: TreeRecord) -> TreeView:
    """Return a record with its names, children and verdict."""
    children: dict[int | None, list[int]] = {}
    for node in record.nodes:
        children.setdefault(node.parent, []).append(node.id)
    return TreeView(record, _names(record), children, verdict(record))


def total(node: TreeNode) -> float:
    """Return the reward of a leaf that is known to have one."""
    assert node.leaf is not None and node.leaf.total is not None
    return node.leaf.total


def verdict(record: TreeRecord) -> str | None:
    """Return the reward that is 1 for a pass and 0 for a failure.

    A whole reward goes before a part of one ("shapes/strict"). A reward that happens to be 1 (or 0) everywhere counts
    only if it is called strict: of another name it may as well be a scale whose other values did not occur.
    """
    values: dict[str, set[float]] = {}
    for node in record.nodes:
        if node.leaf is not None and node.sampled:
            for name, raw in node.leaf.rewards.items():
                if raw is not None:
                    values.setdefault(name, set()).add(raw)
    binary = [name for name, seen in values.items() if seen <= {0.0, 1.0}]
    strict = [name for name in binary if name.endswith("strict")]
    whole = [name for name in strict if "/" not in name]
    both = [name for name in binary if "/" not in name and values[name] == {0.0, 1.0}]
    return next(iter([*whole, *both, *strict]), None)


def _names(record: TreeRecord) -> list[str]:
    """Return the nodes' names; see `TreeView`."""
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
