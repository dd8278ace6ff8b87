"""rewards.json: what a run knew of its rewards when it began.

    {"training": {label: facts}, "held_out": {label: facts}}

Labels are those of the samples ("shapes"; its parts, "shapes/colour", go the way of the whole) and of the metrics
("reward/<label>", "held_out/<label>"). Facts are name, description, range, higher_is_better and version of the scorer,
and weight, shift and scale of its share in the total, weight * (raw - shift) / scale. A number that is not finite, as
the bound of an open range, is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REWARDS = "rewards.json"
TRAINING, HELD_OUT = "training", "held_out"
STAGES = {"train": TRAINING, "eval": HELD_OUT}
"""Whose rewards the samples of a stage have."""


def lower_is_better(record: Mapping[str, Any], stage: str) -> frozenset[str]:
    """Return labels of the rewards of which less is better.

    Args:
        record: the content of rewards.json; what is missing or no such record tells nothing: more is better.
        stage: of samples; of one that is neither training nor evaluation all rewards are looked up.
    """
    parts = [record.get(part) for part in ([STAGES[stage]] if stage in STAGES else [TRAINING, HELD_OUT])]
    return frozenset(
        label
        for part in parts
        if isinstance(part, dict)
        for label, facts in part.items()
        if isinstance(facts, dict) and facts.get("higher_is_better") is False
    )
