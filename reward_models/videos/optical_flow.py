"""Whether a clip moves: VBench's rule on the optical flow of OpenCV's DIS, which needs no weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.neural import require_package
from reward_models.self_test import Contrast, clip, contrast

RATE = 8.0
"""Frames per second that VBench looks at; also the rate of clips that do not say theirs, as in VBench."""
LEAST_SIDE = 12
"""In pixels; DIS refuses smaller images."""
PARTS = ("magnitude", "moving")


def flow_lengths(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return lengths of the optical flow between neighbouring frames, in pixels.

    Args:
        frames: (F, H, W, 3) RGB, at least 12 pixels wide and high.

    Returns:
        (F - 1, H, W) float32, or (F - 1, W, H) of wide frames, from OpenCV's DIS with its preset MEDIUM on OpenCV's
        grey.
    """
    import cv2

    if frames.shape[2] > frames.shape[1]:
        # DIS chooses the sizes of its pyramid by the width alone, and crashes on small wide images (12 x 40).
        frames = frames.swapaxes(1, 2)

    estimator: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    greys = [cv2.cvtColor(np.ascontiguousarray(frame), cv2.COLOR_RGB2GRAY) for frame in frames]
    flows = [estimator.calc(first, second, None) for first, second in zip(greys, greys[1:], strict=False)]
    return np.stack([np.hypot(flow[..., 0], flow[..., 1]) for flow in flows]).astype(np.float32)


def sampled(count: int, fps: float) -> list[int]:
    """Return frames that VBench looks at: every round(fps / 8)-th, at least every one."""
    return list(range(0, count, max(1, round(fps / RATE))))


def largest_mean(lengths: NDArray[np.float32]) -> float:
    """Return mean of the largest 5 % (rounded down, at least one) of the flow's lengths in a frame (H, W)."""
    flat = np.sort(lengths, axis=None)[::-1]
    return float(flat[: max(1, int(0.05 * flat.size))].mean(dtype=np.float64))


def moves(magnitudes: list[float], frames: int, side: int, fps: float) -> tuple[bool, float]:
    """Return VBench's rule.

    Args:
        magnitudes: `largest_mean` of each pair of sampled frames, in pixels.
        frames: how many frames were sampled.
        side: the shorter side of the images in pixels.
        fps: of the clip as it is.

    Returns:
        Whether at least round(frames / 4), and at least one, of the pairs exceed 6 side / 256 * max(1, 8 / fps) pixels;
        and the share of pairs that do.
    """
    threshold = 6.0 * side / 256 * max(1.0, RATE / fps)
    over = sum(magnitude > threshold for magnitude in magnitudes)
    return over >= max(1, round(4 * frames / 16)), over / len(magnitudes)


class DynamicDegreeScorer(WithoutWeights):
    """Whether a clip moves, 1 or 0, after VBench's dynamic degree; a stand-in for it.

    Frames are thinned to about 8 a second (every round(fps / 8)-th). For each pair of neighbours the mean of the
    largest 5 % of flow lengths is compared with 6 min(H, W) / 256 pixels (times 8 / fps below 8 frames a second); raw
    is 1 if at least round(F / 4) of F sampled frames' pairs exceed it (Huang et al. 2023, arXiv:2311.17982).

    It departs from VBench in two things, so the name says proxy: the flow is OpenCV's DIS (preset MEDIUM, Kroeger et
    al. 2016, arXiv:1603.03590) instead of RAFT, and at least one pair must exceed the threshold, where VBench asks for
    none in clips of two frames. A batch without frames per second counts as 8, as VBench does for folders of frames.

    Parts: `magnitude`, the mean over pairs of that 5 % mean, in pixels of the clip, which is the finer number; and
    `moving`, the share of pairs over the threshold. Any motion counts: a shaking camera, flicker that looks like flow.
    """

    spec = ScorerSpec(
        name="dynamic_degree_proxy",
        description="1 if the clip moves by VBench's rule on DIS optical flow, else 0.",
        range=(0.0, 1.0),
        media=("video",),
        uses_prompt=False,
        extra="video",
        citation="after https://arxiv.org/abs/2311.17982",
        batch_size=32,
    )

    def __init__(self) -> None:
        require_package("cv2", "video", self.spec.name)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of clips; one with fewer than two sampled frames, or below 12 pixels a side, is NaN.

        Raises:
            RewardError: the media are images.
        """
        self.spec.require(batch)
        fps = batch.fps or RATE
        clips = batch.media.cpu().permute(0, 1, 3, 4, 2).numpy()  # (B, F, H, W, 3)
        return output_of_rows([self._score(frames, fps) for frames in clips], PARTS)

    def contrasts(self) -> list[Contrast]:
        """Return a clip that moves against the same one standing still, or hardly moving."""
        moving, slow = clip("red", "circle"), clip("red", "circle", 0.49, 0.51)
        frozen = moving[:1].expand_as(moving).contiguous()
        return [
            contrast(moving, still, why)
            for still, why in ((frozen, "the other is frozen"), (slow, "the other moves less than a pixel a frame"))
        ]

    def _score(self, frames: NDArray[np.uint8], fps: float) -> tuple[float, dict[str, Any], str | None]:
        chosen = frames[sampled(len(frames), fps)]
        side = min(frames.shape[1:3])
        if len(chosen) < 2 or side < LEAST_SIDE:
            what = f"{len(frames)} frames of {frames.shape[2]} x {frames.shape[1]} pixels at {fps:g} a second"
            return (
                math.nan,
                {},
                f"optical flow needs two frames at 8 a second, of 12 pixels a side; this clip has {what}",
            )
        magnitudes = [largest_mean(lengths) for lengths in flow_lengths(chosen)]
        moved, share = moves(magnitudes, len(chosen), side, fps)
        return float(moved), {"magnitude": float(np.mean(magnitudes)), "moving": share}, None
