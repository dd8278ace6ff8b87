"""The embedded world of moving shapes: prompts in three disjoint splits, and clips of them.

One flat shape on light grey that moves straight and evenly, or stays. Grammar: `reward_models.videos.moving_shapes`.
Held out, half for `tune` and half for `report`, are combinations of colour, shape and motion; every pair of these is
trained on, and every colour, shape and motion is in all splits.

    prompt = prompts("tune")[0]
    clip = render(scene_of(prompt), np.random.default_rng(0))
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from diffrl.data.shapes import PlacedThing, draw
from diffrl.data.worlds import Split, require_split
from diffrl.records import Prompt
from reward_models.images.shapes import SHAPES, Thing
from reward_models.videos.moving_shapes import COLORS, MOTIONS, ClipSpec, format_prompt, parse_prompt

FRAMES = 9
RADIUS = (0.145, 0.175)
"""Radius of a circle as a fraction of the picture's side; the other shapes have the same area."""

TRAVEL = (0.26, 0.38)
"""Distance from the first to the last frame as a fraction of the picture's side."""

_REACH = math.sqrt(4 * math.pi / math.sqrt(3)) / math.sqrt(3)  # of a triangle's tip, for a unit circle's area
_MARGIN = 0.035  # to the picture's edge


def prompts(split: Split) -> list[Prompt]:
    """All prompts of a split, in a fixed order; `metadata["kind"]` is "moving" or "still".

    Raises:
        ConfigError: there is no such split.
    """
    require_split("moving", split)
    return [
        Prompt(format_prompt(clip), {"kind": "moving" if any(MOTIONS[clip.motion]) else "still"})
        for clip in _all_clips()
        if split_of(clip) == split
    ]


def scene_of(prompt: Prompt | str) -> ClipSpec:
    """Return the clip that a prompt asks for."""
    return parse_prompt(prompt if isinstance(prompt, str) else prompt.text)


def split_of(clip: ClipSpec) -> Split:
    """Return the split that a clip belongs to.

    Held out is one shape for each colour and motion, in a Latin square; its diagonals go to tune and report in turn.
    """
    diagonal = COLORS.index(clip.thing.color) + list(MOTIONS).index(clip.motion)
    if SHAPES[diagonal % len(SHAPES)] != clip.thing.shape:
        return "train"
    return "report" if diagonal % 2 else "tune"


def render(clip: ClipSpec, rng: np.random.Generator, size: int = 32, frames: int = FRAMES) -> NDArray[np.uint8]:
    """Draw a clip at a random size, place and speed.

    Args:
        clip: what to draw.
        rng: where the randomness comes from.
        size: side of the picture in pixels.
        frames: at least two.

    Returns:
        (frames, size, size, 3) uint8 RGB.
    """
    return np.stack([draw((item,), size) for item in sample_path(clip, rng, frames)])


def sample_path(clip: ClipSpec, rng: np.random.Generator, frames: int = FRAMES) -> tuple[PlacedThing, ...]:
    """Return the thing in every frame: one size, a straight path at one speed that stays clear of the edges."""
    radius = rng.uniform(*RADIUS)
    travel = rng.uniform(*TRAVEL)
    edge = _REACH * radius + _MARGIN
    points = []
    for step in MOTIONS[clip.motion]:
        low, high = edge + travel * max(0, -step), 1 - edge - travel * max(0, step)
        points.append(rng.uniform(low, high) + step * travel * np.linspace(0, 1, frames))
    return tuple(PlacedThing(clip.thing, float(x), float(y), radius) for x, y in zip(*points, strict=True))


def _all_clips() -> list[ClipSpec]:
    return [
        ClipSpec(Thing(color, shape), motion) for color, shape, motion in itertools.product(COLORS, SHAPES, MOTIONS)
    ]
