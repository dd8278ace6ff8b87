"""The embedded world of moving shapes: its prompt grammar and its verifiable scorers of short videos.

    a red circle moving left  |  a blue square moving up  |  a black triangle staying still

Every frame is judged as an image of one shape by `reward_models.images.shapes`; what is added here is time.
`MovingShapesScorer` grades, continuously: how well the frames show the object, how clearly it goes where it should, how
evenly it moves. `StrictMovingShapesScorer` passes or fails, as a person would who looks closely, and says why.

Lengths are fractions of the image's side. Letters: B clips, F frames.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.images import shapes
from reward_models.images.shapes import SHAPES, SceneSpec, Thing, Tolerances, Verdicts
from reward_models.images.shapes_vision import Array, Objects, perceive

COLORS = ("red", "green", "blue", "yellow", "purple", "black")
"""Those of the palette that this world asks for; an object of another one fits none of them."""

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

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class ClipSpec:
    """What a prompt asks for: one thing and a motion of `MOTIONS`."""

    thing: Thing
    motion: str


@dataclass(frozen=True)
class ClipTolerances:
    """What still passes strictly. The first eight are those of `reward_models.images.shapes.Tolerances` in every frame.

    They are of this world: its objects have one size, and what its small autoencoder blurs must pass.

    Args:
        color_fit: least fit of the object's interior to its colour against the others.
        shape_fit: least fit of its outline to its shape against the others.
        outline: greatest mean distance between its outline and that shape's, in pixels of an image of 32.
        horn: greatest single deviation from it, in pixels of an image of 32.
        min_radius: least radius of a circle of the object's area.
        max_radius: greatest radius of it.
        background_error: greatest RGB distance (0-441) of the background to the world's light grey.
        clutter: greatest amount of foreground outside the object, as a fraction of the image.
        travel: least distance from the first to the last frame along the asked direction.
        across: greatest distance across the asked direction, as a fraction of that along it.
        still: greatest distance from the first frame's position at any time, where nothing should move.
        jerk: greatest distance of a single step from the mean step.
        growth: greatest difference of the object's area in a frame from its mean area, as a fraction of that.
    """

    color_fit: float = 0.5
    shape_fit: float = 0.2
    outline: float = 0.225
    horn: float = 0.75
    min_radius: float = 0.13
    max_radius: float = 0.19
    background_error: float = 20.0
    clutter: float = 0.004
    travel: float = 0.2
    across: float = 0.25
    still: float = 0.04
    jerk: float = 0.025
    growth: float = 0.2

    def __post_init__(self) -> None:
        """Refuse negative tolerances, and those of time that are nothing, since grades are measured by them."""
        wrong = {f.name: getattr(self, f.name) for f in fields(self) if not getattr(self, f.name) >= 0}
        wrong |= {name: 0.0 for name in ("travel", "still", "jerk", "growth") if getattr(self, name) == 0}
        if wrong:
            raise RewardError(
                f"Tolerances of the moving shapes scorer must be >= 0; travel, still, jerk and growth > 0. Got {wrong}."
            )

    @property
    def looks(self) -> Tolerances:
        """Those of a single frame."""
        return Tolerances(**{name: getattr(self, name) for name in _LOOKS})


_LOOKS = [f.name for f in fields(ClipTolerances) if f.name in {field.name for field in fields(Tolerances)}]


def format_prompt(clip: ClipSpec) -> str:
    """Return the prompt of a clip; the inverse of `parse_prompt`."""
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


def judge_clips(clips: Sequence[ClipSpec], videos: NDArray[np.uint8], tolerances: ClipTolerances) -> Verdicts:
    """Compare what was asked with what is seen.

    A quantity of time is graded 1 where it is perfect, 1/2 where it just passes, 0 at twice that.

    Args:
        clips: what the prompts of B clips ask for.
        videos: (B, F, H, W, 3) uint8 RGB, F >= `LEAST_FRAMES`.
        tolerances: what passes strictly.

    Returns:
        The parts, (B,) float32 in [0, 1] each, and B reasons, None where all is right:
        count, colour, shape, clean: means over frames of the parts of `reward_models.images.shapes.judge`.
        object: mean over frames of the product of the object's fits (colour, outline, size; shared with extra objects)
            and of clean.
        direction: how far the object gets along the asked direction, 1 from 1.3 times the least travel on, less the
            more it goes askew; where it should stay, how near to its first position it keeps.
        smooth: mean over the steps between frames of how near each is to the mean step times how little the object's
            area differs from its mean; 0 for a step from or to a frame without the object.
        partial: mean of object, direction and smooth.
        strict: 1 if every frame, the direction and the smoothness pass, else 0.
    """
    count, frames = videos.shape[:2]
    seen = perceive(videos.reshape(-1, *videos.shape[2:]))
    scenes = [scene for clip in clips for scene in [SceneSpec((clip.thing,))] * frames]
    pictures = shapes.judge(scenes, seen, tolerances.looks)
    looks = {name: part.reshape(count, frames) for name, part in pictures.parts.items()}
    track = _Track.of(seen.objects, count, frames)
    direction, goes = _direction(clips, track, tolerances)
    smooth, even, steady = _smoothness(track, tolerances)
    parts = {name: looks[name].mean(1) for name in FRAME_PARTS}
    parts["object"] = (looks["binding"] * looks["clean"]).mean(1)
    parts["direction"], parts["smooth"] = direction, smooth
    parts["partial"] = (parts["object"] + direction + smooth) / 3
    right = looks["strict"] == 1  # (B, F)
    parts["strict"] = right.all(1) & goes & even & steady
    reasons = []
    for b, clip in enumerate(clips):
        causes = [_of_frames(right[b], pictures.reasons[b * frames : (b + 1) * frames])]
        causes.append("" if goes[b] else f"direction: {_way(track.way[b], clip.motion, tolerances)}")
        causes.append("" if even[b] and steady[b] else f"motion: {'size changes' if even[b] else 'uneven'}")
        reasons.append("; ".join(filter(None, causes)) or None)
    return Verdicts({name: np.asarray(parts[name], dtype=np.float32) for name in PARTS}, reasons)


@dataclass(frozen=True)
class _Track:
    """The largest object of each frame over time.

    there (B, F) bool; area (B, F), 0 where there is none; step (B, F - 1, 2), valid where `both` (B, F - 1);
    way (B, 2), from the first place to the last; strayed (B,), the greatest distance from the first place.
    """

    there: Bools
    area: Array
    step: Array
    both: Bools
    way: Array
    strayed: Array

    @staticmethod
    def of(objects: Objects, count: int, frames: int) -> _Track:
        image, first = np.unique(objects.image, return_index=True)  # the first of an image is its largest

        def spread(values: Array) -> Array:  # (N,) to (B, F)
            filled = np.zeros(count * frames, dtype=np.float32)
            filled[image] = values[first]
            return filled.reshape(count, frames)

        there = spread(np.ones(len(objects.image), dtype=np.float32)) > 0
        centre = np.stack([spread(objects.x), spread(objects.y)], -1)
        row = np.arange(count)
        start = centre[row, there.argmax(1)]
        end = centre[row, frames - 1 - there[:, ::-1].argmax(1)]
        away = np.where(there, np.hypot(*np.moveaxis(centre - start[:, None], -1, 0)), 0)
        return _Track(
            there=there,
            area=spread(objects.area),
            step=np.diff(centre, axis=1),
            both=there[:, 1:] & there[:, :-1],
            way=np.where((there.sum(1) > 1)[:, None], end - start, 0),
            strayed=away.max(1),
        )


def _direction(clips: Sequence[ClipSpec], track: _Track, tolerances: ClipTolerances) -> tuple[Array, Bools]:
    """Return how clearly each clip goes where it should, and whether that passes, (B,) each."""
    asked = np.array([MOTIONS[clip.motion] for clip in clips], dtype=np.float32)  # (B, 2)
    still = ~asked.any(1)
    seen = track.there.sum(1) > 1
    along = (track.way * asked).sum(1)
    across = np.abs(track.way * (asked == 0)).sum(1)
    askew = across / np.maximum(along, 1e-6)
    moving = np.clip(along / (_AMPLE * tolerances.travel), 0, 1) * np.clip(1 - askew, 0, 1)
    staying = np.clip(1 - track.strayed / (2 * tolerances.still), 0, 1)
    goes = np.where(
        still, track.strayed <= tolerances.still, (along >= tolerances.travel) & (askew <= tolerances.across)
    )
    return np.where(seen, np.where(still, staying, moving), 0), goes & seen


_AMPLE = 1.3
"""Of the least travel: the distance that is graded as full."""


def _smoothness(track: _Track, tolerances: ClipTolerances) -> tuple[Array, Bools, Bools]:
    """Return how evenly each object moves and keeps its size, and whether steps and sizes pass; (B,) each."""
    both = track.both
    mean = np.where(both[..., None], track.step, 0).sum(1) / np.maximum(both.sum(1), 1)[:, None]
    off = np.hypot(*np.moveaxis(track.step - mean[:, None], -1, 0))  # (B, F - 1)
    usual = track.area.sum(1) / np.maximum(track.there.sum(1), 1)
    grown = np.abs(track.area / np.maximum(usual, 1e-6)[:, None] - 1)  # (B, F)
    steps = np.clip(1 - off / (2 * tolerances.jerk), 0, 1)
    sizes = np.clip(1 - grown / (2 * tolerances.growth), 0, 1)
    smooth = (np.where(both, steps, 0) * (sizes[:, 1:] + sizes[:, :-1]) / 2).mean(1)
    return smooth, (both & (off <= tolerances.jerk)).all(1), (track.there & (grown <= tolerances.growth)).all(1)


def _of_frames(right: Bools, reasons: Sequence[str | None]) -> str:
    """Return what is wrong in how many frames, "object: 7 of 9 frames (colour, shape)"; empty if all are right."""
    if right.all():
        return ""
    wrong = dict.fromkeys(part.split(":")[0] for reason in reasons if reason for part in reason.split("; "))
    return f"object: {int(right.sum())} of {len(right)} frames ({', '.join(wrong)})"


def _way(way: Array, asked: str, tolerances: ClipTolerances) -> str:
    """Describe where an object goes that does not go where it should: "left, not right"."""
    x, y = (float(value) for value in way)
    wanted = asked.split()[-1]
    if max(abs(x), abs(y)) < tolerances.still:
        return "strays" if wanted == "still" else f"still, not {wanted}"
    sideways, upright = "left" if x < 0 else "right", "up" if y < 0 else "down"
    direction = sideways if abs(x) >= abs(y) else upright
    if direction != wanted:
        return f"{direction}, not {wanted}"
    return "not far enough" if np.abs(way).max() < tolerances.travel else "askew"


class MovingShapesScorer(WithoutWeights):
    """How well the clip shows what was asked for, in [0, 1]: the mean of object, direction and smooth, each graded.

    Args:
        **tolerances: fields of `ClipTolerances`.
    """

    spec = ScorerSpec(
        name="moving_shapes",
        description="Graded credit for the right object in every frame, its direction and the evenness of its motion.",
        range=(0.0, 1.0),
        media=("video",),
        version="2",
    )
    summary = "partial"
    __signature__ = inspect.signature(ClipTolerances)  # what a wrong option is compared with

    def __init__(self, **tolerances: float) -> None:
        self.tolerances = ClipTolerances(**tolerances)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of videos; a prompt outside the grammar, or fewer than three frames, give NaN for the sample.

        Raises:
            RewardError: the media are images.
        """
        self.spec.require(batch)
        videos = batch.media.cpu().permute(0, 1, 3, 4, 2).contiguous().numpy()  # (B, F, H, W, 3)
        clips, errors = _read(batch.prompts)
        frames = videos.shape[1]
        if frames < LEAST_FRAMES:
            short = f"{self.spec.name} needs {LEAST_FRAMES} frames, and the clip has {frames}"
            return output_of_rows([(math.nan, {}, error or short) for error in errors], PARTS)
        verdicts = judge_clips(clips, videos, self.tolerances)
        return verdicts.output(self.summary, errors)

    @staticmethod
    def asks(prompt: str, metadata: Mapping[str, Any]) -> None:
        """Refuse a prompt outside the grammar; see `prompt_checks`."""
        parse_prompt(prompt)


def _read(prompts: Sequence[str]) -> tuple[list[ClipSpec], list[str | None]]:
    """Return the clips of prompts, any clip for a prompt outside the grammar, and what is wrong with those."""
    clips: list[ClipSpec] = []
    errors: list[str | None] = []
    for text in prompts:
        try:
            clips.append(parse_prompt(text))
            errors.append(None)
        except RewardError as error:
            clips.append(ClipSpec(Thing(COLORS[0], SHAPES[0]), next(iter(MOTIONS))))
            errors.append(str(error))
    return clips, errors


class StrictMovingShapesScorer(MovingShapesScorer):
    """1 if the right object is in every frame, alone, and moves as asked and smoothly, else 0, with the reason.

    Args:
        **tolerances: fields of `ClipTolerances`.
    """

    spec = ScorerSpec(
        name="moving_shapes_strict",
        description="1 if object, direction and smoothness are all right, else 0.",
        range=(0.0, 1.0),
        media=("video",),
        version="2",
    )
    summary = "strict"
