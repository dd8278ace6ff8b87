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
Fact = tuple[str, Sentence]
"""A label and what it says."""


@dataclass(frozen=True)
class Paragraph:
    """Sentences under a heading.

    Args:
        key: a word for style sheets and tests.
        title: the heading.
        sentences: in order.
        shown: ids of nodes whose pictures say it at a glance.
        note: what these pictures are, where that needs a word.
        facts: labels with what they say, below the sentences.
        strip: id of a node whose split's pictures (before, aim, after) say it.
    """

    key: str
    title: str
    sentences: Sequence[Sentence]
    shown: Sequence[int] = ()
    note: str = ""
    strip: int | None = None
    facts: Sequence[Fact] = ()

    @property
    def text(self) -> str:
        """All sentences and facts as plain text."""
        return " ".join([self.prose, *(f"{label}: {words}." for label, words in self.spoken)]).strip()

    @property
    def prose(self) -> str:
        """The sentences as plain text."""
        return " ".join(map(plain, self.sentences))

    @property
    def spoken(self) -> list[tuple[str, str]]:
        """The facts as plain text."""
        return [(label, plain(fact)) for label, fact in self.facts]


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
