"""What is refused before anything is scored: prompts, metadata or media that a reward needs and does not get."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from reward_models.errors import RewardError
from reward_models.scoring.choices import Loaded
from reward_models.scoring.items import Item, Peek
from reward_models.suffixes import VIDEO_SUFFIXES

SHOWN = 3


def check_items(rewards: Sequence[Loaded], items: Sequence[Item], peeks: Sequence[Peek]) -> None:
    """Hold every sample against every reward.

    Raises:
        RewardError: names the files that a reward cannot work on.
    """
    videos = [item for item in items if item.path.suffix.lower() in VIDEO_SUFFIXES]
    if videos and importlib.util.find_spec("av") is None:
        raise RewardError(
            f"Reading {_files(videos)} needs PyAV. Run: pip install 'diffrl[video]', or use --media image."
        )
    for reward in rewards:
        spec = reward.scorer.spec
        wrong = [item for item, seen in zip(items, peeks, strict=True) if seen.kind not in (None, *spec.media)]
        if wrong:
            raise RewardError(_wrong_media(reward, wrong))
        bare = [item for item in items if item.prompt is None]
        if spec.uses_prompt and bare:
            raise RewardError(
                f"The reward {reward.label} compares images with their prompts. No prompt was found for "
                f"{_files(bare)}. Give --prompt TEXT or --prompts FILE, or put captions beside the images "
                f"({bare[0].path.with_suffix('.txt').name}) or a metadata.jsonl."
            )
        for key in (*spec.requires, *(["source"] if spec.uses_source else [])):
            lacking = [item for item in items if key not in item.metadata]
            if lacking:
                raise RewardError(
                    f"The reward {reward.label} needs {key} in the metadata of every sample. It is missing for "
                    f'{_files(lacking)}. Give --prompts FILE.jsonl with lines {{"file": ..., "prompt": ..., "{key}": '
                    "...}."
                )


def _wrong_media(reward: Loaded, wrong: Sequence[Item]) -> str:
    files = _files(wrong)
    if "image" in reward.scorer.spec.media:
        what = "is a video" if len(wrong) == 1 else "are videos"
        return (
            f"The reward {reward.label} scores images. {files} {what}. Average it over frames, --reward video_mean "
            f"--option video_mean.reward={reward.choice.name}, or score only the images, --media image."
        )
    what = "is a still" if len(wrong) == 1 else "are stills"
    return (
        f"The reward {reward.label} scores videos. {files} {what}. Choose another reward, or score only the videos, "
        "--media video."
    )


def _files(items: Sequence[Item]) -> str:
    shown = ", ".join(item.name for item in items[:SHOWN])
    rest = len(items) - SHOWN
    return shown + (f" and {rest} other{'s' if rest > 1 else ''}" if rest > 0 else "")
