"""When two prompts are the same to a person, and how many of one list are in another."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from diffrl.records import Prompt


def normalised(text: str) -> str:
    """Return a text without what makes no other prompt of it: case, width, blanks, punctuation at its end."""
    if text.isascii():  # of which NFKC changes nothing
        plain = text.casefold()
    else:
        plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    plain = " ".join(plain.split())
    end = len(plain)
    while end and (plain[end - 1] == " " or unicodedata.category(plain[end - 1]).startswith("P")):
        end -= 1
    return plain[:end] or plain


def count_shared(evaluated: Sequence[Prompt], trained: Sequence[Prompt]) -> int:
    """Return how many of some prompts are among others, by `normalised` texts and the image that they edit."""
    known = {name for prompt in trained for name in _names(prompt)}
    return sum(not known.isdisjoint(_names(prompt)) for prompt in evaluated)


def _names(prompt: Prompt) -> set[tuple[str, str | None]]:
    return {(normalised(text), prompt.source) for text in prompt.captions or (prompt.text,)}
