"""Which held-out samples keep their pictures: an even spread, and what changed most since the first evaluation.

What will have changed most by the last evaluation is only known then, so the first one keeps a small picture of every
sample, up to `FIRST`: the same sample of a later evaluation has something to stand beside, whichever it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

FIRST = 2000
"""Small pictures of the first evaluation."""
SAME = 1e-6
"""Changes up to this are rounding."""


def spread(prompts: Sequence[Hashable], most: int) -> list[int]:
    """Return samples that stand for all: the first ones, or of more prompts than that the first sample of evenly many.

    Args:
        prompts: what each sample was drawn for.
        most: how many.

    Returns:
        Their places, ascending.
    """
    first: dict[Hashable, int] = {}
    for row, prompt in enumerate(prompts):
        first.setdefault(prompt, row)
    if len(first) <= most:
        return list(range(min(most, len(prompts))))
    firsts = list(first.values())
    return sorted(firsts[turn * len(firsts) // most] for turn in range(most))


def most_changed(now: Sequence[float | None], before: Sequence[float | None], most: int) -> list[int]:
    """Return samples that lost most, and that gained most: half of each, the odd one of the losses.

    Args:
        now: a total for each sample; None or NaN where there is none.
        before: of the first evaluation; None too where it kept no picture.
        most: how many.

    Returns:
        Their places, ascending. Equal changes are taken in their order; rounding is no change.
    """
    changes = [
        (new - old, row)
        for row, (new, old) in enumerate(zip(now, before, strict=True))
        if new is not None and old is not None and math.isfinite(new - old)
    ]
    lost = sorted((change, row) for change, row in changes if change < -SAME)
    gained = sorted((-change, row) for change, row in changes if change > SAME)
    return sorted(row for _, row in (*lost[: most - most // 2], *gained[: most // 2]))
