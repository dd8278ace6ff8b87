"""The embedded world of moving shapes: its prompt grammar and its verifiable scorers of short videos.

    a red circle moving left  |  a blue square moving up  |  a black triangle staying still

Each frame is read as a picture of one shape by `reward_models.images.shapes`; what is added here is time.
`MovingShapesScorer` gives partial credit, `StrictMovingShapesScorer` a pass or a fail; partial credit
is 1 exactly where strict passes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.errors import RewardError
from reward_models.images.shapes import COLORS, SHAPES, SceneSpec, Thing, Tolerances, judge
from reward_models.images.shapes_vision import FoundObject, Perception, perceive

MOTIONS: Mapping[str, tuple[int, int]] = {
    "moving left": (-1, 0),
    "moving right": (1, 0),
    "moving up": (0, -1),
    "moving down": (0, 1),
    "staying still": (0, 0),
}
"""Where the object goes: (x, y), y pointing down."""

FRAME_PARTS = ("count", "colour", "shape", "clean")
PARTS = (*FRAME_PARTS, "object", "direction", "smooth", "partial", "strict")
LEAST_FRAMES = 3
"""Fewer have at most one step, which is even whatever it is."""


@dataclass(frozen=True)
class ClipSpec:
    """What a prompt asks for: one thing and a motion of `MOTIONS`."""

    thing: Thing
    motion: str


@dataclass(frozen=True)
class MotionTolerances:
    """How far a clip may be from perfect motion and still pass. Lengths are fractions of the picture's side.

    Args:
        travel: least distance from the first to the last frame along the asked direction.
        across: greatest distance across the asked direction, as a fraction of that along it.
        still: greatest distance from the first frame's position at any time, where nothing should move.
        jerk: greatest distance of a single step from the mean step.
        growth: greatest change of the object's area from one frame to the next, as a fraction of the larger.
    """

    travel: float = 0.2
    across: float = 0.25
    still: float = 0.04
    jerk: float = 0.025
    growth: float = 0.3

    def __post_init__(self) -> None:
        """Refuse negative tolerances, and a travel of nothing."""
        wrong = {f.name: getattr(self, f.name) for f in fields(self) if not getattr(self, f.name) >= 0}
        if wrong or self.travel == 0:
            raise RewardError(
                "Tolerances of the moving shapes scorer must be >= 0 and travel > 0. "
                f"Got {wrong or {'travel': self.travel}}."
            )


def format_prompt(clip: ClipSpec) -> str:
    """The prompt of a clip; the inverse of `parse_prompt`."""
    return f"a {clip.thing.color} {clip.thing.shape} {clip.motion}"


def parse_prompt(text: str) -> ClipSpec:
    """Read a prompt; letter case, extra spaces and a final full stop do not matter.

    Raises:
        RewardError: the prompt is outside the grammar.
    """
    words = text.lower().strip().removesuffix(".").split()
    motion = " ".join(words[3:])
    if len(words) == 5 and words[0] == "a" and words[1] in COLORS and words[2] in SHAPES and motion in MOTIONS:
        return ClipSpec(Thing(words[1], words[2]), motion)
    raise RewardError(
        f"A moving shapes prompt is 'a COLOUR SHAPE MOTION'. Got {text!r}. Colours: {', '.join(COLORS)}; "
        f"shapes: {', '.join(SHAPES)}; motions: {', '.join(MOTIONS)}."
    )


def judge_clip(
    clip: ClipSpec, frames: Sequence[Perception], looks: Tolerances, motion: MotionTolerances
) -> dict[str, float]:
    """Compare what was asked with what was seen.

    Args:
        clip: what the prompt asks for.
        frames: what each frame shows, in their order.
        looks: what still passes in a single frame.
        motion: what still passes over time.

    Returns:
        The parts, each in [0, 1], and their summaries `partial` and `strict`:
        count, colour, shape, clean: means over frames of the parts of `reward_models.images.shapes.judge`.
        object: share of the frames that show the right thing and nothing else.
        direction: 1 if the object ends where asked, less the less of the way it goes and half if it goes askew;
            where it should stay, 1 if it does and less the farther it strays.
        smooth: share of the steps between frames in which the object is there before and after, moves by the mean step
            and keeps its size.
        partial: mean of object, direction and smooth.
        strict: 1 if all three are 1, else 0.
    """
    scene = SceneSpec((clip.thing,))
    judged = [judge(scene, seen, looks) for seen in frames]
    parts = {name: _mean([one[name] for one in judged]) for name in FRAME_PARTS}
    track = [seen.objects[0] if seen.objects else None for seen in frames]  # the largest object
    parts["object"] = _mean([one["strict"] for one in judged])
    parts["direction"] = _direction(MOTIONS[clip.motion], track, motion)
    parts["smooth"] = _smoothness(track, motion)
    summed = [parts["object"], parts["direction"], parts["smooth"]]
    return {**parts, "partial": _mean(summed), "strict": float(all(value == 1.0 for value in summed))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _direction(asked: tuple[int, int], track: Sequence[FoundObject | None], motion: MotionTolerances) -> float:
    places = [(item.x, item.y) for item in track if item is not None]
    if len(places) < 2:
        return 0.0
    (x0, y0), (x1, y1) = places[0], places[-1]
    if asked == (0, 0):
        strayed = max(math.hypot(x - x0, y - y0) for x, y in places)
        return min(1.0, max(0.0, 1 - (strayed - motion.still) / motion.travel))
    along = (x1 - x0) * asked[0] + (y1 - y0) * asked[1]
    across = abs(y1 - y0 if asked[0] else x1 - x0)
    progress = min(1.0, max(0.0, along / motion.travel))
    return progress if across <= motion.across * along else progress / 2


def _smoothness(track: Sequence[FoundObject | None], motion: MotionTolerances) -> float:
    """Share of even steps; a step from or to a frame without the object is not even."""
    pairs = list(zip(track, track[1:], strict=False))
    steps = [(b.x - a.x, b.y - a.y) for a, b in pairs if a is not None and b is not None]
    if not steps:
        return 0.0
    mean_x, mean_y = _mean([dx for dx, _ in steps]), _mean([dy for _, dy in steps])

    def even(a: FoundObject | None, b: FoundObject | None) -> bool:
        if a is None or b is None:
            return False
        off = math.hypot(b.x - a.x - mean_x, b.y - a.y - mean_y)
        return off <= motion.jerk and abs(b.area - a.area) <= motion.growth * max(a.area, b.area)

    return sum(even(a, b) for a, b in pairs) / len(pairs)


class MovingShapesScorer(WithoutWeights):
    """Partial credit in [0, 1]: the mean of object, direction and smooth.

    Args:
        **tolerances: fields of `MotionTolerances` and of `reward_models.images.shapes.Tolerances`.
    """

    spec = ScorerSpec(
        name="moving_shapes",
        description="Partial credit: share of frames with the right object, its direction, smooth motion.",
        range=(0.0, 1.0),
        media=("video",),
    )
    summary = "partial"
    __signature__ = inspect.Signature(  # what a wrong option is compared with
        [*(inspect.signature(Tolerances).parameters | inspect.signature(MotionTolerances).parameters).values()]
    )

    def __init__(self, **tolerances: float) -> None:
        names = {f.name for f in fields(Tolerances)}
        self.looks = Tolerances(**{name: value for name, value in tolerances.items() if name in names})
        self.motion = MotionTolerances(**{name: value for name, value in tolerances.items() if name not in names})

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of videos; a prompt outside the grammar, or fewer than three frames, give NaN for the sample.

        Raises:
            RewardError: the media are pictures.
        """
        self.spec.require(batch)
        videos = batch.media.cpu().permute(0, 1, 3, 4, 2).contiguous().numpy()  # (B, F, H, W, 3)
        rows = [self._score(video, text) for video, text in zip(videos, batch.prompts, strict=True)]
        return output_of_rows(rows, PARTS)

    def _score(self, video: NDArray[np.uint8], text: str) -> tuple[float, dict[str, float], str | None]:
        try:
            clip = parse_prompt(text)
        except RewardError as error:
            return math.nan, {}, str(error)
        if len(video) < LEAST_FRAMES:
            return math.nan, {}, f"{self.spec.name} needs {LEAST_FRAMES} frames, and the clip has {len(video)}"
        parts = judge_clip(clip, perceive_clip(video), self.looks, self.motion)
        return parts[self.summary], parts, None


class StrictMovingShapesScorer(MovingShapesScorer):
    """1 if the right object is in every frame, alone, and moves as asked and smoothly, else 0.

    Args:
        **tolerances: fields of `MotionTolerances` and of `reward_models.images.shapes.Tolerances`.
    """

    spec = ScorerSpec(
        name="moving_shapes_strict",
        description="1 if object, direction and smoothness are all right, else 0.",
        range=(0.0, 1.0),
        media=("video",),
    )
    summary = "strict"


def perceive_clip(video: NDArray[np.uint8]) -> tuple[Perception, ...]:
    """Find the objects of every frame; clips of up to 64 KiB are remembered, so that two scorers see each once.

    Args:
        video: (F, H, W, 3) uint8 RGB.
    """
    data, shape = video.tobytes(), video.shape
    return _remembered(data, shape) if len(data) <= 65536 else _perceive_clip(data, shape)


def _perceive_clip(data: bytes, shape: tuple[int, ...]) -> tuple[Perception, ...]:
    return tuple(perceive(frame) for frame in np.frombuffer(data, dtype=np.uint8).reshape(shape))


_remembered = lru_cache(maxsize=512)(_perceive_clip)
