"""The text in quotes of a prompt, apart from the scorer that reads pictures: captions are read without torch."""

from __future__ import annotations

import re

_DOUBLE = re.compile('"([^"]*)"|“([^”]*)”')
_SINGLE_MARK = re.compile(r"(?<!\w)['‘’]|['‘’](?!\w)")


def quoted(prompt: str) -> str | None:
    """The first text in quotes of a prompt, or None.

    Double quotes, straight or curly, come first, and within them the earliest pair. Without any, single quotes count
    if they cannot mean anything else: leaving aside those between two letters (don't), there are exactly two, the
    first with no letter before it and the second with none behind it. "the dogs' sign says 'rex'" has three: None.
    """
    found = _DOUBLE.search(prompt)
    if found:
        return found.group(1) if found.group(1) is not None else found.group(2)
    marks = [mark.start() for mark in _SINGLE_MARK.finditer(prompt)]
    if len(marks) != 2:
        return None
    first, second = marks
    opens = first == 0 or not prompt[first - 1].isalnum()
    closes = second == len(prompt) - 1 or not prompt[second + 1].isalnum()
    return prompt[first + 1 : second] if opens and closes else None
