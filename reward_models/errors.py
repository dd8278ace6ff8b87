"""The exceptions that reward models raise for a mistake the user can mend, and the words in which others' are told."""

from __future__ import annotations

import re

LONGEST_MESSAGE = 4000
"""Characters of an error."""
LONGEST_TOLD = 500
"""Characters of a stranger's message within it."""
_UNPRINTABLE = re.compile("[\ud800-\udfff\x00-\x08\x0b-\x1f\x7f]")
"""Lone surrogates, which UTF-8 cannot store, and control characters, which a terminal obeys."""


class RewardError(Exception):
    """A scorer cannot be found, loaded or applied; the message names the rule, what was received and the way out."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, LONGEST_MESSAGE))


class BrokenScorerError(RewardError):
    """A scorer broke its contract: it raised what it should not, returned what is no output, or changed its batch."""


def printable(text: object, longest: int = LONGEST_TOLD) -> str:
    """A stranger's text as it can be stored and shown: cut to `longest` characters, without surrogates."""
    try:
        plain = str(text)
    except Exception as error:  # an exception's __str__ is a stranger's code too
        plain = f"a message that cannot be read ({type(error).__name__})"
    cut = plain if len(plain) <= longest else f"{plain[: longest - 3]}..."
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", cut)


def told(error: BaseException) -> str:
    """An exception's class and the first line of its message, without a full stop."""
    first = (printable(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
