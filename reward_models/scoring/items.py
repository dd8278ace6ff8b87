"""An image or a video that is to be scored: where it is and what came with it. Pixels are read when it is its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reward_models.common.errors import RewardError
from reward_models.common.image_files import MOST_BYTES, header_of, opened, require_fits
from reward_models.common.suffixes import IMAGE_SUFFIXES, VIDEO_SUFFIXES, is_image
from reward_models.common.video_files import video_bytes

MEDIA_SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)


@dataclass(frozen=True)
class Item:
    """One sample."""

    path: Path  # of its file
    name: str  # the path as the user gave or would give it; what rows and messages say
    root: Path  # the folder in which it was found; captions are looked for up to there
    prompt: str | None = None  # None if it has none
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what scorers may need beside the prompt
    # where it comes from (stage, iteration, seed, ...); copied to the rows
    sample: Mapping[str, Any] = field(default_factory=dict)
    # samples of the same key are a group; None: those of equal prompts, or of one folder, are
    group: tuple[Any, ...] | None = None
    problem: str | None = None  # why it has no prompt, where something about it could not be read
    prompt_from: str | None = None  # where its prompt was found

    @property
    def group_key(self) -> tuple[Any, ...]:
        """What its group has in common."""
        if self.group is not None:
            return self.group
        if self.prompt is None:
            return "folder", str(self.path.parent)
        source = self.metadata.get("source")  # the same words about another image to edit are another prompt
        return "prompt", self.prompt, source if is_image(source) else None


@dataclass(frozen=True)
class Found:
    """Samples in their order, and how many files were left out, by reason."""

    items: list[Item]
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Peek:
    """What a file's header says: "image", "video" or None if it cannot be read, and about how many bytes of pixels."""

    kind: str | None
    size: int


def peek(path: Path) -> Peek:
    """Look at a file's header, without decoding it."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        size = video_bytes(path)
        return Peek("video", size if size <= MOST_BYTES else 0)  # it will fail before it takes any
    try:
        with opened(path) as image:
            head = header_of(image)
            require_fits(path, head.height, head.width, head.size // max(1, 3 * head.height * head.width))
    except RewardError:
        return Peek(None, 0)
    return Peek("video" if head.moves else "image", head.size)


def is_media(path: Path) -> bool:
    """Return whether a file's suffix is that of an image or a video."""
    return path.suffix.lower() in MEDIA_SUFFIXES
