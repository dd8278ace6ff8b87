"""Sections of a tree's story: labels with what they say, in text and references to nodes that pages make into links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diffrl.trees.record import TreeNode

MOST = 3
"""How many nodes a fact names."""
Parts = tuple[str | int, ...]
"""Text, and nodes by their ids."""
Fact = tuple[str, Parts]
"""A label and what it says."""


@dataclass(frozen=True)
class Section:
    """Facts under a heading."""

    key: str  # a word for style sheets and tests
    title: str
    facts: Sequence[Fact]  # labels with what they say, in order
    text: str = ""  # a fixed sentence above them, "" without one
    shown: Sequence[int] = ()  # ids of nodes whose images say it at a glance
    note: str = ""  # what these images are, where that needs a word
    strip: int | None = None  # id of a node whose split's images (before, aim, after) say it


def fact(label: str, *parts: str | TreeNode) -> Fact:
    """Return a label with what it says; nodes become references."""
    return label, tuple(part.id if isinstance(part, TreeNode) else part for part in parts)


def counts(rows: Sequence[tuple[str, int | str]]) -> list[Fact]:
    """Return facts of labels with a count or words; none where the count is 0."""
    return [fact(label, f"{count:,}" if isinstance(count, int) else count) for label, count in rows if count]


def naming(label: str, nodes: Sequence[TreeNode], words: Callable[[TreeNode], str]) -> list[Fact]:
    """Return a fact that names the first of some nodes, each with words, and how many more there are; none of none."""
    if not nodes:
        return []
    parts: list[str | TreeNode] = []
    for node in nodes[:MOST]:
        parts += [", "] * bool(parts) + [node, f" ({words(node)})"]
    return [fact(label, *parts, f", {len(nodes) - MOST} more" if len(nodes) > MOST else "")]
