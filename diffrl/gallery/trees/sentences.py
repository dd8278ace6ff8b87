"""Sentences that name nodes: plain text for tests and the terminal, with references that pages make into links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ref:
    """A node that a sentence names.

    Args:
        node: its id in the record.
        text: what it is called.
    """

    node: int
    text: str


Sentence = tuple[str | Ref, ...]


@dataclass(frozen=True)
class Paragraph:
    """Sentences under a heading.

    Args:
        key: a word for style sheets and tests.
        title: the heading.
        sentences: in order.
        shown: ids of nodes whose pictures say it at a glance.
        note: what these pictures are, where that needs a word.
        strip: id of a node whose split's pictures (before, aim, after) say it.
    """

    key: str
    title: str
    sentences: Sequence[Sentence]
    shown: Sequence[int] = ()
    note: str = ""
    strip: int | None = None

    @property
    def text(self) -> str:
        """All sentences as plain text."""
        return " ".join(plain(one) for one in self.sentences)


def sentence(*parts: str | Ref) -> Sentence:
    """A sentence of text and references."""
    return parts


def plain(one: Sentence) -> str:
    """A sentence as plain text."""
    return "".join(part if isinstance(part, str) else part.text for part in one)


def joined(items: Sequence[Sentence]) -> Sentence:
    """Items as a list in a sentence: "a, b and c"."""
    parts: list[str | Ref] = []
    for place, item in enumerate(items):
        if place:
            parts.append(" and " if place == len(items) - 1 else ", ")
        parts += item
    return tuple(parts)
