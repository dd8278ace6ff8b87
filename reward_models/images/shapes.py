"""Verifiable scorers of the embedded world of coloured shapes.

In the manner of GenEval: read the prompt, find the objects in the image, compare. `ShapesScorer` grades: how well
each asked object's outline, colour and size fit, how clearly the relations hold, what is there that should not be.
`StrictShapesScorer` passes or fails, as a person would who looks closely, and says why. Both see the same things.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights
from reward_models.common.errors import RewardError
from reward_models.images.shapes_grammar import (
    COLORS,
    NUMBERS,
    RELATIONS,
    SIZES,
    SceneSpec,
    Thing,
    format_prompt,
    parse_prompt,
)
from reward_models.images.shapes_judge import PARTS, Tolerances, Verdicts, judge
from reward_models.images.shapes_vision import BACKGROUND, PALETTE, SHAPES, coverage, perceive

__all__ = [
    "BACKGROUND",
    "COLORS",
    "NUMBERS",
    "PALETTE",
    "PARTS",
    "RELATIONS",
    "SHAPES",
    "SIZES",
    "SceneSpec",
    "ShapesScorer",
    "StrictShapesScorer",
    "Thing",
    "Tolerances",
    "Verdicts",
    "coverage",
    "format_prompt",
    "judge",
    "parse_prompt",
]


class ShapesScorer(WithoutWeights):
    """How well the image shows what was asked for, in [0, 1]: the mean of the parts that apply, each graded.

    Args:
        **tolerances: fields of `Tolerances`.
    """

    spec = ScorerSpec(
        name="shapes",
        description="Graded credit for count, colours, outlines, sizes, binding, relations and a clean background.",
        range=(0.0, 1.0),
        version="2",
    )
    summary = "partial"
    __signature__ = inspect.signature(Tolerances)  # what a wrong option is compared with

    def __init__(self, **tolerances: float) -> None:
        self.tolerances = Tolerances(**tolerances)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images; a prompt outside the grammar gives NaN for its sample.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        scenes, errors = _read(batch.prompts)
        pictures = batch.media.cpu().permute(0, 2, 3, 1).contiguous().numpy()  # (B, H, W, 3)
        verdicts = judge(scenes, perceive(pictures), self.tolerances)
        return verdicts.output(self.summary, errors)

    @staticmethod
    def asks(prompt: str, metadata: Mapping[str, Any]) -> None:
        """Refuse a prompt outside the grammar; see `prompt_checks`."""
        parse_prompt(prompt)


def _read(prompts: Sequence[str]) -> tuple[list[SceneSpec], list[str | None]]:
    """Return the scenes of prompts, any scene for a prompt outside the grammar, and what is wrong with those."""
    scenes: list[SceneSpec] = []
    errors: list[str | None] = []
    for text in prompts:
        try:
            scenes.append(parse_prompt(text))
            errors.append(None)
        except RewardError as error:
            scenes.append(SceneSpec((Thing(COLORS[0], SHAPES[0]),)))
            errors.append(str(error))
    return scenes, errors


class StrictShapesScorer(ShapesScorer):
    """1 if everything the prompt asks for is right and nothing else is there, else 0, with the reason.

    Args:
        **tolerances: fields of `Tolerances`.
    """

    spec = ScorerSpec(
        name="shapes_strict",
        description="1 if count, colours, outlines, sizes, relations and background are all right, else 0.",
        range=(0.0, 1.0),
        version="2",
    )
    summary = "strict"
