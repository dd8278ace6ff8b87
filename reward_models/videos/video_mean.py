"""Any scorer of images as a scorer of clips: its mean over frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reward_models.base import RewardBatch, RewardOutput, Scorer, ScorerSpec, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.common.video_files import frame_rows
from reward_models.registry import load_reward
from reward_models.self_test import FRAMES, Contrast, Sample, contrasts_of


class VideoMeanScorer:
    """The mean of an image's score over frames of a clip.

    raw and every part = mean over the sampled frames, which are evenly spaced from the first to the last
    (`frame_rows`), so the same clip is always judged by the same frames. If one of them cannot be scored, the clip is
    NaN, and so is a part that one of them lacks. Range, direction, scaling, required metadata and licences are the
    wrapped scorer's. A scorer of groups compares frames of the same time with each other.

    Args:
        reward: name of a scorer of images, or "module:Object".
        reward_options: its options.
        frames: how many frames to score, at least 1. Memory and time of one call are those of a batch of images,
            that many times one after the other.
    """

    spec = ScorerSpec(
        name="video_mean",
        description="The mean of any image reward over frames of a clip.",
        range=(-math.inf, math.inf),
        media=("video",),
    )

    def __init__(self, reward: str, reward_options: Mapping[str, Any] | None = None, frames: int = 8) -> None:
        if frames < 1:
            raise RewardError(f"frames of video_mean must be at least 1. Got {frames}.")
        self.frames = frames
        self.scorer: Scorer = load_reward(reward, **(reward_options or {}))
        inner = self.scorer.spec
        if "image" not in inner.media:
            raise RewardError(
                f"video_mean averages a reward of images over frames. Got {reward!r}, which scores "
                f"{' and '.join(inner.media)}s. Use it as it is."
            )
        self.spec = replace(
            inner,
            name="video_mean",
            description=f"Mean over {frames} frames of {inner.name}: {inner.description}",
            media=("video",),
            version=f"1 of {inner.name} {inner.version}",
        )

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of clips.

        Raises:
            RewardError: the media are images, or the wrapped scorer cannot work on them.
        """
        self.spec.require(batch)
        rows = frame_rows(batch.media.shape[1], self.frames)
        if not rows:
            return output_of_rows([(math.nan, {}, "the clip has no frames")] * len(batch))
        outputs = [self.scorer(replace(batch, media=batch.media[:, row], fps=None)) for row in rows]
        errors: list[str | None] = [None] * len(batch)
        for row, output in reversed(list(zip(rows, outputs, strict=True))):  # the earliest frame's error stays
            errors = [
                f"frame {row}: {error}" if error else old for error, old in zip(output.errors, errors, strict=True)
            ]
        ok = torch.stack([output.ok for output in outputs]).all(0)
        raw = torch.stack([output.raw for output in outputs]).mean(0)
        names = dict.fromkeys(name for output in outputs for name in output.parts)  # a failed batch may have none
        unknown = torch.full_like(raw, math.nan)
        parts = {name: torch.stack([output.parts.get(name, unknown) for output in outputs]).mean(0) for name in names}
        notes = [
            _note([(frame, output.note(i)) for frame, output in zip(rows, outputs, strict=True)])
            for i in range(len(batch))
        ]
        return RewardOutput(raw.masked_fill(~ok, math.nan), ok, errors, parts, notes if any(notes) else ())

    def to(self, device: str | torch.device) -> VideoMeanScorer:
        """Move the wrapped scorer."""
        self.scorer.to(device)
        return self

    def contrasts(self) -> list[Contrast]:
        """Return the wrapped scorer's, as clips that stand still."""
        return [
            Contrast(_still(contrast.good), _still(contrast.bad), contrast.why)
            for contrast in contrasts_of(self.scorer)
        ]


def _still(sample: Sample) -> Sample:
    if sample.media.ndim == 4:  # a clip already, of a scorer of both
        return sample
    return replace(sample, media=sample.media.expand(FRAMES, *sample.media.shape).contiguous())


def _note(notes: Sequence[tuple[int, str | None]]) -> str | None:
    """Return what was said of a clip's frames, by their numbers; once where it is the same of all."""
    reasons = [(frame, note) for frame, note in notes if note]
    if len({note for _, note in notes}) == 1:
        return notes[0][1]
    return "; ".join(f"frame {frame}: {note}" for frame, note in reasons)
