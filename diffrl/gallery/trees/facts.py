"""Facts of a tree: labels with what they say, text and references to nodes that pages make into links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ref:
    """A node that a fact names.

    Args:
        node: its id in the record.
        text: what it is called.
    """

    node: int
    text: str


Parts = tuple[str | Ref, ...]
Fact = tuple[str, Parts]
"""A label and what it says."""


@dataclass(frozen=True)
class Paragraph:
    """Facts under a heading.

    Args:
        key: a word for style sheets and tests.
        title: the heading.
        facts: labels with what they say, in order.
        text: a fixed sentence above them, "" without one.
        shown: ids of nodes whose images say it at a glance.
        note: what these images are, where that needs a word.
        strip: id of a node whose split's images (before, aim, after) say it.
    """

    key: str
    title: str
    facts: Sequence[Fact]
    text: str = ""
    shown: Sequence[int] = ()
    note: str = ""
    strip: int | None = None

    @property
    def spoken(self) -> list[tuple[str, str]]:
        """The facts as plain text."""
        return [(label, plain(parts)) for label, parts in self.facts]


def fact(label: str, *parts: str | int | Ref) -> Fact:
    """A label with what it says."""
    return label, tuple(f"{part:,}" if isinstance(part, int) else part for part in parts)


def plain(parts: Parts) -> str:
    """Parts as plain text."""
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def listed(items: Sequence[Parts]) -> Parts:
    """Items with commas between them."""
    return tuple(part for place, item in enumerate(items) for part in ((", ", *item) if place else item))
