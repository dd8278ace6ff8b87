"""A picture or a video that is to be scored: where it is and what came with it. Pixels are read when it is its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from reward_models.suffixes import IMAGE_SUFFIXES, VIDEO_SUFFIXES, is_image

MEDIA_SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
ANIMATED = (".gif", ".webp", ".png")
VIDEO_BYTES = 64 * 2**20
"""What a video file is taken to need, decoded, where its header does not say."""


@dataclass(frozen=True)
class Item:
    """One sample.

    Args:
        path: of its file.
        name: the path as the user gave or would give it; what rows and messages say.
        root: the folder in which it was found; captions are looked for up to there.
        prompt: None if it has none.
        metadata: what scorers may need beside the prompt.
        sample: where it comes from (stage, iteration, seed, ...); copied to the rows.
        group: samples of the same key are a group; None: those of equal prompts, or of one folder, are.
    """

    path: Path
    name: str
    root: Path
    prompt: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sample: Mapping[str, Any] = field(default_factory=dict)
    group: tuple[Any, ...] | None = None

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
    suffix = path.suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return Peek("video", _video_size(path))
    try:
        with Image.open(path) as image:
            frames = getattr(image, "n_frames", 1) if suffix in ANIMATED else 1
            size = 3 * image.width * image.height * frames
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, EOFError):
        return Peek(None, 0)
    return Peek("video" if frames > 1 else "image", size)


def _video_size(path: Path) -> int:
    """About how many bytes a video has, decoded; `VIDEO_BYTES` where its header does not say."""
    try:
        import av
    except ImportError:
        return VIDEO_BYTES
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            seconds = (container.duration or 0) / av.time_base
            frames = stream.frames or round(seconds * float(stream.average_rate or 0))
            return 3 * stream.width * stream.height * frames or VIDEO_BYTES
    except (av.error.FFmpegError, IndexError, OSError, ValueError):
        return VIDEO_BYTES


def is_media(path: Path) -> bool:
    """Whether a file's suffix is that of a picture or a video."""
    return path.suffix.lower() in MEDIA_SUFFIXES
