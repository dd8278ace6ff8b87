"""The embedded world of moving shapes: prompts in two disjoint splits, and clips of them.

One flat shape on light grey that moves straight and evenly, or stays. Grammar: `reward_models.videos.moving_shapes`.
Held out are combinations of colour, shape and motion; every pair of these is trained on.

    prompt = prompts("held_out")[0]
    clip = render(scene_of(prompt), np.random.default_rng(0))
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from diffrl.data.shapes import PlacedThing, Split, draw
from diffrl.errors import DiffrlError
from diffrl.records import Prompt
from reward_models.images.shapes import COLORS, SHAPES, Thing
from reward_models.videos.moving_shapes import MOTIONS, ClipSpec, format_prompt, parse_prompt

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
        DiffrlError: there is no such split.
    """
    if split not in ("train", "held_out"):
        raise DiffrlError(f"The moving shapes world has the splits 'train' and 'held_out'. Got {split!r}.")
    return [
        Prompt(format_prompt(clip), {"kind": "moving" if any(MOTIONS[clip.motion]) else "still"})
        for clip in _all_clips()
        if is_held_out(clip) == (split == "held_out")
    ]


def scene_of(prompt: Prompt | str) -> ClipSpec:
    """The clip that a prompt asks for."""
    return parse_prompt(prompt if isinstance(prompt, str) else prompt.text)


def is_held_out(clip: ClipSpec) -> bool:
    """Whether the clip belongs to the held-out split: one shape for each colour and motion, in a Latin square."""
    color, motion = COLORS.index(clip.thing.color), list(MOTIONS).index(clip.motion)
    return SHAPES[(color + motion) % len(SHAPES)] == clip.thing.shape


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
    """The thing in every frame: one size, a straight path at one speed that stays clear of the edges."""
    radius = rng.uniform(*RADIUS)
    travel = rng.uniform(*TRAVEL)
    edge = _REACH * radius + _MARGIN
    place = []
    for step in MOTIONS[clip.motion]:
        low, high = edge + travel * max(0, -step), 1 - edge - travel * max(0, step)
        place.append(rng.uniform(low, high) + step * travel * np.linspace(0, 1, frames))
    return tuple(PlacedThing(clip.thing, float(x), float(y), radius) for x, y in zip(*place, strict=True))


def _all_clips() -> list[ClipSpec]:
    return [
        ClipSpec(Thing(color, shape), motion) for color, shape, motion in itertools.product(COLORS, SHAPES, MOTIONS)
    ]
