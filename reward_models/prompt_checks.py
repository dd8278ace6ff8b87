"""What a scorer can say of a prompt before there is an image. All of it is optional: a scorer without it says nothing.

    asks(prompt, metadata)      what it looks for in the image, in words, None if that is the prompt itself;
                                raises RewardError if no sample of this prompt can be scored. A static method, so that
                                it can be asked without weights.
    text_limit                  tokens of a prompt that it reads; what is longer is cut
    text_length(prompt)         how many tokens a prompt has, as `text_limit` counts them

A scorer with `towers` (CLIP's) or with a `scorer` inside (`video_mean`) has what these have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

INSIDE = ("towers", "scorer")
"""Attributes of a scorer that may know what it does not say itself."""


def asks_of(scorer: Any) -> Callable[[str, Mapping[str, Any]], str | None] | None:
    """Return the scorer's `asks`; None if it has none."""
    asks = _find(scorer, "asks")
    return asks if callable(asks) else None


def reading_of(scorer: Any) -> tuple[int, Callable[[str], int]] | None:
    """Return how many tokens of a prompt a scorer reads, and what counts them; None if it does not say."""
    limit, length = _find(scorer, "text_limit"), _find(scorer, "text_length")
    return (limit, length) if isinstance(limit, int) and callable(length) else None


def _find(scorer: Any, name: str) -> Any:
    value = getattr(scorer, name, None)
    inside = (getattr(scorer, part, None) for part in INSIDE) if value is None else ()
    return next((inner for part in inside if part is not None and (inner := _find(part, name)) is not None), value)
