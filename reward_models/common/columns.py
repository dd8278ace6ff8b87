"""Names under which tables of images and of prompts keep the prompt; one list for every reader of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

PROMPT_COLUMNS = (
    "prompt",
    "prompts",
    "text",
    "texts",
    "caption",
    "captions",
    "text_prompt",
    "prompt_text",
    "positive_prompt",
    "image_prompt",
    "long_caption",
    "caption_long",
    "short_caption",
    "caption_short",
    "edit_instruction",
    "edit_prompt",
    "instruction",
    "description",
)
"""Columns that may hold prompts, the likeliest first; case, blanks and hyphens do not matter."""

FILE_COLUMNS = ("file", "file_name", "filename", "file_path", "filepath", "image_path", "path")
"""Columns that may name a row's image, likewise."""

LOOKED_AT = 1000
"""Rows that tell what a column holds."""

_NUMBER = re.compile(r"\s*[-+]?[0-9.,]+(e[-+]?[0-9]+)?\s*", re.IGNORECASE)


def text_column(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the column that holds the prompts.

    It is the first of `PROMPT_COLUMNS` in which a row has words: a column of labels such as "text": 3 hides no other.
    Where none has words, it is the first that is not empty, then the first that is there.

    Args:
        names: of all columns, in any case.
        rows: values by name; the first `LOOKED_AT` are read.

    Returns:
        The name as the table has it; None if it has none of these columns.
    """
    known = _known(names, PROMPT_COLUMNS)
    if len(known) < 2:
        return next(iter(known), None)
    filled: set[str] = set()
    worded: set[str] = set()
    for row in islice(rows, LOOKED_AT):
        for name in known:
            text = prompt_text(row.get(name))
            filled |= {name} if text is not None or isinstance(row.get(name), int | float) else set()
            worded |= {name} if text is not None and not _NUMBER.fullmatch(text) else set()
        if known[0] in worded:
            break
    return next((name for group in (worded, filled, known) for name in known if name in group), None)


def file_column(names: Iterable[str]) -> str | None:
    """Return the column that names a row's image, None if there is none."""
    return next(iter(_known(names, FILE_COLUMNS)), None)


def prompt_text(value: Any) -> str | None:
    """Return a cell as a prompt without blanks around it: a text, or the first of a list of texts; None otherwise."""
    if isinstance(value, list | tuple) and value and all(isinstance(entry, str) for entry in value):
        value = next((entry for entry in value if entry.strip()), "")
    return (value.strip() or None) if isinstance(value, str) else None


def _known(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Return those of some columns that a table has, as it writes them, in their own order."""
    spelled = {_plain(name): name for name in reversed(list(names)) if isinstance(name, str)}
    return [spelled[name] for name in columns if name in spelled]


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())
