"""The text in quotes of a prompt, apart from the scorer that reads images: captions are read without torch."""

from __future__ import annotations

import re

_PAIRS = re.compile(
    r'(?<!\d)"((?:\\.|[^"\\])*)"'  # no inches: 3" opens nothing
    "|[“„”]([^“”„]*)[”“]|«([^«»]*)»|»([^«»]*)«|‹([^‹›]*)›|「([^「」]*)」|『([^『』]*)』|``((?:(?!'').)*)''"
)
_SINGLE_MARK = re.compile(r"(?<!\w)['‘’]|['‘’](?!\w)")


def quoted(prompt: str) -> str | None:
    r"""Return the first text in quotes of a prompt that is not blank, or None.

    Double quotes of any kind come first ("", “”, „“, «», 「」, ``''), and within them the earliest pair. A straight one
    behind a digit means inches and opens nothing; \" within a pair is one of the text. Without any, single quotes count
    if they cannot mean anything else: leaving aside those between two letters (don't), and those behind a digit (5')
    where there are others, there are exactly two, the first with no letter before it and the second with none behind
    it. "the dogs' sign says 'rex'" has three: None.
    """
    for pair in _PAIRS.finditer(prompt):
        text = next(group for group in pair.groups() if group is not None)
        if text.strip():
            return text.replace('\\"', '"')
    marks = [mark.start() for mark in _SINGLE_MARK.finditer(prompt)]
    if len(marks) > 2:
        marks = [position for position in marks if not prompt[position - 1 : position].isdigit()]
    if len(marks) != 2:
        return None
    first, second = marks
    opens = first == 0 or not prompt[first - 1].isalnum()
    closes = second == len(prompt) - 1 or not prompt[second + 1].isalnum()
    text = prompt[first + 1 : second]
    return text if opens and closes and text.strip() else None
