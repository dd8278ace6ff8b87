"""How steadily a clip's frames follow each other: two numbers of the pixels alone.

Both are highest for a clip in which nothing moves, which a generator finds out sooner or later. `motion_gate` takes
that reward away; `dynamic_degree_proxy` beside them measures motion itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.self_test import Contrast, clip, contrast

PARTS = ("change", "steadiness")


def frame_change(frames: Tensor) -> float:
    """Return mean |f_t - f_{t+1}| / 255 over a clip (F, 3, H, W) uint8 with F >= 2, in [0, 1]."""
    steps = (frames[1:].short() - frames[:-1].short()).abs()
    return int(steps.sum(dtype=torch.int64)) / (255 * steps.numel())  # whole numbers: exact


def second_difference(frames: Tensor) -> float:
    """Return mean |f_t - (f_{t-1} + f_{t+1}) / 2| / 255 over the inner frames of a clip (F, 3, H, W) uint8, F >= 3."""
    values = frames.short()
    bends = (2 * values[1:-1] - values[:-2] - values[2:]).abs()
    return int(bends.sum(dtype=torch.int64)) / (2 * 255 * bends.numel())


class TemporalFlickerScorer(WithoutWeights):
    """Absence of flicker, exactly as VBench's temporal flickering.

    raw = (255 - mean |f_t - f_{t+1}|) / 255 over all pairs of neighbouring frames, pixels and channels, which is 1 for
    a frozen clip (Huang et al. 2023, arXiv:2311.17982). VBench applies it to clips of static scenes only; anything that
    moves lowers it as well. All frames are used at the rate at which they come.

    Args:
        motion_gate: mean change between neighbouring frames, in [0, 1], below which the score is scaled down in
            proportion: raw * min(1, change / motion_gate), so that a frozen clip scores 0. 0, the default, leaves
            VBench's score as it is. Part `change` shows what clips have; a slowly moving object gives about 0.02.
            Flicker is change as well, so the gate takes away the reward of standing still and does not ask for motion.
    """

    spec = ScorerSpec(
        name="temporal_flicker",
        description="Absence of flicker: 1 minus the mean change of a pixel from frame to frame, as in VBench.",
        range=(0.0, 1.0),
        media=("video",),
        uses_prompt=False,
        citation="https://arxiv.org/abs/2311.17982",
    )
    least_frames = 2
    unsteadiness: Callable[[Tensor], float] = staticmethod(frame_change)

    def __init__(self, motion_gate: float = 0.0) -> None:
        if not 0 <= motion_gate <= 1:
            raise RewardError(
                f"motion_gate of {self.spec.name} must be in [0, 1]. Got {motion_gate}. Give 0 for none, or the least "
                "change between frames that a clip should have, such as 0.01."
            )
        self.motion_gate = motion_gate

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of clips; one with too few frames is NaN.

        Raises:
            RewardError: the media are images.
        """
        self.spec.require(batch)
        return output_of_rows([self._score(frames) for frames in batch.media], PARTS)

    def contrasts(self) -> list[Contrast]:
        """Return a calm clip against one that flickers; with a gate, a moving clip against a frozen one."""
        moving = clip("red", "circle")
        frozen = moving[:1].expand_as(moving).contiguous()
        if self.motion_gate:
            return [contrast(moving, frozen, "it moves, and the other is frozen")]
        flickering = frozen.clone()
        flickering[::2] = flickering[::2] // 2
        return [
            contrast(moving, flickering, "the other flickers"),
            contrast(frozen, moving, "nothing changes in it (this score cannot tell motion from flicker)"),
        ]

    def _score(self, frames: Tensor) -> tuple[float, dict[str, float], str | None]:
        if len(frames) < self.least_frames:
            return math.nan, {}, f"{self.spec.name} needs {self.least_frames} frames, and the clip has {len(frames)}"
        steadiness = 1 - self.unsteadiness(frames)
        change = frame_change(frames)
        gate = min(1.0, change / self.motion_gate) if self.motion_gate else 1.0
        return gate * steadiness, {"change": change, "steadiness": steadiness}, None


class MotionSmoothnessScorer(TemporalFlickerScorer):
    """Smoothness of motion, by how well a frame is the mean of its neighbours; a stand-in for VBench's score.

    raw = 1 - mean |f_t - (f_{t-1} + f_{t+1}) / 2| / 255 over all inner frames, pixels and channels. VBench's motion
    smoothness interpolates every second frame with the network AMT-S; here the interpolation is a plain mean, so that
    large steady motion costs something too. It is not VBench's number: the name says proxy.

    Args:
        motion_gate: as in `TemporalFlickerScorer`: raw * min(1, change / motion_gate). A frozen clip scores 1 without
            it and 0 with it.
    """

    spec = ScorerSpec(
        name="motion_smoothness_proxy",
        description="Smoothness: 1 minus the mean distance of a frame to the mean of its neighbours.",
        range=(0.0, 1.0),
        media=("video",),
        uses_prompt=False,
        citation="after https://arxiv.org/abs/2311.17982",
    )
    least_frames = 3
    unsteadiness = staticmethod(second_difference)

    def contrasts(self) -> list[Contrast]:
        """Return even motion against the same frames out of order; with a gate, a moving clip against a frozen one."""
        moving = clip("red", "circle")
        if self.motion_gate:
            return [contrast(moving, moving[:1].expand_as(moving).contiguous(), "it moves, and the other is frozen")]
        jumping = moving[[0, 7, 1, 6, 2, 5, 3, 4]]
        flickering = moving.clone()
        flickering[::2] = flickering[::2] // 2
        return [
            contrast(moving, jumping, "its frames are in order"),
            contrast(moving, flickering, "the other flickers"),
        ]
