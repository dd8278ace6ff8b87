"""Writing a tree (`trees.TreeRecord`) and its images, so that no reader ever sees half of it."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from diffrl.data.sources import read_source
from diffrl.errors import DiffrlError
from diffrl.files import discard, replacing
from diffrl.trees.illustrations import FRAMES, illustration
from diffrl.trees.read import NAME
from diffrl.trees.record import DOCUMENT, TREES, TreeRecord, tree_name
from reward_models.media import clip_options, save_media, to_pil

CRISP = 64
"""Longest edge of images that are kept exactly: they are cheap, and every pixel of them shows."""
QUALITY = 85


def write_tree(run_dir: Path, record: TreeRecord, images: Mapping[str, Tensor], fps: float = 16.0) -> Path:
    """Keep a tree; one of the same iteration and group is replaced. It appears whole, images and all.

    Args:
        run_dir: the run.
        record: the document; numbers that are not finite become null.
        images: the files that it names, uint8 (3, H, W) or (F, 3, H, W).
        fps: frames per second of videos.

    Returns:
        Its folder.

    Raises:
        DiffrlError: it cannot be written, or a value that came with the prompt is no JSON.
    """
    folder = run_dir / TREES / tree_name(record.iteration, record.group)
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        content = _plain(asdict(record))
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, image in images.items():
            save_illustration(image, temporary / name, fps)
        (temporary / DOCUMENT).write_text(text + "\n", encoding="utf-8")
        discard(folder)
        os.replace(temporary, folder)
    except (OSError, TypeError, ValueError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise DiffrlError(f"The tree {folder} cannot be written: {error}.") from error
    return folder


def save_illustration(media: Tensor, path: Path, fps: float) -> None:
    """Write an image (3, H, W) or a clip (F, 3, H, W) as small WebP; up to `CRISP` pixels wide and high, lossless.

    Args:
        media: uint8 RGB.
        path: ends in .webp.
        fps: frames per second of a clip.
    """
    if max(media.shape[-2:]) <= CRISP:
        save_media(media, path, fps)
        return
    first, *others = (to_pil(frame) for frame in (media if media.ndim > 3 else media[None]))
    moving = clip_options(others, fps) if media.ndim > 3 else {}
    first.save(path, format="WEBP", quality=QUALITY, method=2, **moving)


def loses_nothing(size: Sequence[int]) -> bool:
    """Return whether an illustration of media of this size, (3, H, W) or (F, 3, H, W), has all of its pixels."""
    return max(size[-2:]) <= CRISP and (len(size) == 3 or size[0] <= FRAMES)


def keep_source(path: str, file: Path) -> None:
    """Write a small copy, once, of the image that samples are edits of: a still WebP, whole or not at all.

    Args:
        path: of the image.
        file: of the copy.

    Raises:
        ConfigError: the image cannot be read.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as half:
            save_illustration(illustration(read_source(path)), half, fps=1.0)


def drop_trees(run_dir: Path, first: int) -> None:
    """Remove the trees of this iteration and later ones, and what an ended run left half-written."""
    for folder in (run_dir / TREES).glob("*") if (run_dir / TREES).is_dir() else ():
        match = NAME.fullmatch(folder.name)
        if (match and int(match[1]) >= first) or (folder.name.startswith(".") and folder.name.endswith(".tmp")):
            try:
                discard(folder)
            except OSError as error:
                raise DiffrlError(f"The tree {folder} cannot be removed: {error}.") from error


def _plain(value: Any) -> Any:
    """Return the same in JSON's terms: text keys, lists, null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
