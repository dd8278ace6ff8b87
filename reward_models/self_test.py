"""Images that a scorer must tell apart, and what it says of them: catches set-ups that return the same for all.

    diffrl rewards self-test pickscore --option model=/models/PickScore_v1

A scorer with needs of its own (text in the image, a detector's classes) has a method `contrasts()`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_models.asking import ask
from reward_models.base import RewardBatch, RewardOutput, Scorer, output_of_rows
from reward_models.common.errors import BrokenScorerError
from reward_models.common.messages import describe
from reward_models.images.shapes_vision import BACKGROUND, PALETTE, coverage

SIDE = 256
"""Side of the drawn images, in pixels."""
FRAMES, FPS = 8, 8.0
"""Of the drawn clips."""


@dataclass(frozen=True)
class Sample:
    """An image (3, H, W) or a clip (F, 3, H, W), uint8 RGB, with its prompt, metadata and what it is an edit of."""

    media: Tensor
    prompt: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Tensor | None = None


@dataclass(frozen=True)
class Contrast:
    """Two samples of which a working scorer prefers the first, and why."""

    good: Sample
    bad: Sample
    why: str


def contrast(good: Tensor, bad: Tensor, why: str, prompt: str = "a sample") -> Contrast:
    """Return two media of one prompt, of which the first is better."""
    return Contrast(Sample(good, prompt), Sample(bad, prompt), why)


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found.

    Args:
        passed: nothing is wrong.
        scores: (why, good score, bad score) of each contrast.
        problems: what is wrong, one sentence each.
    """

    passed: bool
    scores: Sequence[tuple[str, float, float]]
    problems: Sequence[str]


def drawing(color: str, shape: str, x: float = 0.5, y: float = 0.5, side: int = SIDE) -> Tensor:
    """Return a flat coloured shape on light grey, (3, side, side) uint8."""
    cover = coverage(shape, x * side, y * side, 0.1 * side * side, side, side)[..., None]
    image = cover * np.array(PALETTE[color], np.float32) + (1 - cover) * np.array(BACKGROUND, np.float32)
    return torch.from_numpy(image.round().astype(np.uint8)).permute(2, 0, 1).contiguous()


def noise(side: int = SIDE, seed: int = 0) -> Tensor:
    """Return uniform noise, (3, side, side) uint8."""
    return torch.randint(0, 256, (3, side, side), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def clip(color: str, shape: str, start: float = 0.3, end: float = 0.7) -> Tensor:
    """Return a shape that moves evenly from left to right, (F, 3, side, side) uint8."""
    return torch.stack([drawing(color, shape, x=x) for x in np.linspace(start, end, FRAMES)])


def default_contrasts(kind: str) -> list[Contrast]:
    """Return contrasts for scorers that judge how well an image, or a clip, fits its prompt.

    Args:
        kind: "image" or "video".
    """
    things = [("red", "circle"), ("blue", "square"), ("green", "triangle")]
    made = []
    for (color, shape), other in zip(things, things[1:] + things[:1], strict=True):
        if kind == "image":
            prompt, good, bad = f"a {color} {shape}", drawing(color, shape), drawing(*other)
        else:
            prompt, good, bad = f"a {color} {shape} moving right", clip(color, shape), clip(*other)
        made.append(contrast(good, bad, f"the image shows the prompt {prompt!r}", prompt))
    return made


def contrasts_of(scorer: Scorer) -> list[Contrast]:
    """Return a scorer's own contrasts, or the default ones of the media it scores."""
    contrasts = getattr(scorer, "contrasts", None)
    return list(contrasts()) if contrasts is not None else default_contrasts(scorer.spec.media[0])


def self_test(scorer: Scorer) -> SelfTest:
    """Score pairs of known order; every score must be a number, they must differ, and the right ones must win."""
    contrasts = contrasts_of(scorer)
    sign = 1 if scorer.spec.higher_is_better else -1
    scores, problems = [], []
    for contrast in contrasts:
        good, bad = _single(scorer, contrast.good), _single(scorer, contrast.bad)
        values = float(good.raw[0]), float(bad.raw[0])
        scores.append((contrast.why, *values))
        for output, value in ((good, values[0]), (bad, values[1])):
            low, high = scorer.spec.range
            if not math.isfinite(value):
                problems.append(f"A sample could not be scored: {output.errors[0]}.")
            elif not low <= value <= high:
                problems.append(f"The score {value:g} is outside the range [{low:g}, {high:g}] of {scorer.spec.name}.")
    finite = [value for _, good, bad in scores for value in (good, bad) if math.isfinite(value)]
    if finite and len(set(finite)) == 1:
        what = "All scores are 0" if finite[0] == 0 else f"All scores are equal ({finite[0]:g})"
        problems.append(f"{what}: the weights, or the processor, are not what the scorer expects.")
    else:
        lost = [why for why, good, bad in scores if sign * good <= sign * bad]
        problems.extend(f"The wrong sample won where the right one is right because {why}." for why in lost)
    return SelfTest(not problems, scores, list(dict.fromkeys(problems)))


def _single(scorer: Scorer, sample: Sample) -> RewardOutput:
    fps = FPS if sample.media.ndim == 4 else None
    sources = [] if sample.source is None else [sample.source]
    batch = RewardBatch(sample.media[None], [sample.prompt], [sample.metadata], fps, sources=sources)
    if scorer.spec.scope == "group":  # the sample and its mirror image
        media = torch.stack([sample.media, sample.media.flip(-1)])
        batch = RewardBatch(media, [sample.prompt] * 2, [sample.metadata] * 2, fps, sources=sources * 2)
    try:
        return ask(scorer, batch, scorer.spec.name)
    except BrokenScorerError as error:
        if error.__cause__ is None:
            raise
        return output_of_rows([(math.nan, {}, describe(error.__cause__))] * len(batch))
