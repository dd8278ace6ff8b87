"""What a message says of something given, or raised by a stranger: cut before it is written, however large it is."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Iterable
from typing import Any

LONGEST_MESSAGE = 500
"""Characters of a stranger's message."""

_UNPRINTABLE = re.compile("[\ud800-\udfff\x00-\x08\x0b-\x1f\x7f]")
"""Lone surrogates, which UTF-8 cannot store, and control characters, which a terminal obeys."""

LONGEST_NOTE = 200
"""Characters of what a scorer says of a sample."""

SHOWN = 80
"""Characters of a value in a message."""

LONGEST_NAME = 100
"""Characters up to which a name is quoted whole, and compared with those that are known."""


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters; what is longer ends in dots."""
    return text if len(text) <= most else text[: most - 3] + "..."


def quote(name: object, most: int = LONGEST_NAME) -> str:
    """Return a name in quotes, cut; unprintable characters escaped."""
    return repr(cut(str(name), most))


def show(value: Any, most: int = SHOWN) -> str:
    """Return a value as the user would write it, cut to a readable length; no more of it is written than is shown."""
    parts, length = [], 0
    try:
        for part in json.JSONEncoder(default=str, ensure_ascii=False).iterencode(value):
            parts.append(part)
            length += len(part)
            if length > most:
                break
        text = "".join(parts)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, numbers of thousands of digits
        try:
            text = reprlib.repr(value)
        except ValueError:
            text = f"a {type(value).__name__}"
    return cut(text, most).encode("utf-8", "backslashreplace").decode("utf-8")


def closest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if none is near."""
    text = str(name) if isinstance(name, str | int | float) else ""
    if len(text) > LONGEST_NAME:
        return None
    return next(iter(difflib.get_close_matches(text, known, n=1)), None)


def printable(text: object, longest: int = LONGEST_MESSAGE) -> str:
    """Return a stranger's text as it can be stored and shown: cut to `longest` characters, without surrogates."""
    try:
        plain = str(text)
    except Exception as error:  # an exception's __str__ is a stranger's code too
        plain = f"a message that cannot be read ({type(error).__name__})"
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", cut(plain, longest))


def brief(text: str, longest: int = LONGEST_NOTE) -> str:
    """Return a stranger's remark as one short line: what cannot be printed, or turns the writing around, is a space."""
    head = text[: 4 * longest]  # no more is read of a text of any length
    return cut(" ".join("".join(c if c.isprintable() else " " for c in head).split()), longest)


def describe(error: BaseException) -> str:
    """Return an exception's class and the first line of its message, without a full stop."""
    first = (printable(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
