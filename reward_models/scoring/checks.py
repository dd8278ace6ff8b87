"""What a reward needs of a sample and does not get: its prompt, metadata, or another kind of medium."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from reward_models.common.errors import RewardError
from reward_models.common.suffixes import VIDEO_SUFFIXES
from reward_models.scoring.choices import Loaded
from reward_models.scoring.items import Item, Peek


def check_items(rewards: Sequence[Loaded], items: Sequence[Item], peeks: Sequence[Peek]) -> None:
    """Refuse a reward that can score none of the samples; of others, those that it cannot score fail alone.

    Raises:
        RewardError: says why the first cannot be scored.
    """
    for reward in rewards:
        reasons = [why_not(reward, item, seen) for item, seen in zip(items, peeks, strict=True)]
        if None not in reasons:
            others = f" The same, or another reason, holds for all {len(items)} files." if len(items) > 1 else ""
            raise RewardError(f"{reasons[0]}{others}")


def why_not(reward: Loaded, item: Item, seen: Peek) -> str | None:
    """Return why a sample cannot be scored with a reward, as its header and what came with it say; None if it can."""
    spec, label = reward.scorer.spec, reward.label
    if seen.kind is not None and seen.kind not in spec.media:
        return _wrong_kind(reward, item)
    if item.path.suffix.lower() in VIDEO_SUFFIXES and importlib.util.find_spec("av") is None:
        return f"Reading {item.name} needs PyAV. Run: pip install 'diffrl[video]', or use --media image."
    if spec.uses_prompt and item.prompt is None:
        why = f" {item.problem}" if item.problem is not None else ""
        return (
            f"The reward {label} compares images with their prompts. No prompt was found for {item.name}.{why} Give "
            f"--prompt TEXT or --prompts FILE, or put a caption beside it ({item.path.with_suffix('.txt').name}) or a "
            "metadata.jsonl."
        )
    for key in (*spec.requires, *(["source"] if spec.uses_source else [])):
        if key not in item.metadata:
            return (
                f"The reward {label} needs {key} in the metadata of every sample. It is missing for {item.name}. Give "
                f'--prompts FILE.jsonl with lines {{"file": ..., "prompt": ..., "{key}": ...}}.'
            )
    return None


def _wrong_kind(reward: Loaded, item: Item) -> str:
    if "image" in reward.scorer.spec.media:
        return (
            f"The reward {reward.label} scores images. {item.name} is a video. Average it over frames, --reward "
            f"video_mean --option video_mean.reward={reward.settings.name}, or score only the images, --media image."
        )
    return (
        f"The reward {reward.label} scores videos. {item.name} is a still. Choose another reward, or score only the "
        "videos, --media video."
    )
