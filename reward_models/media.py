"""The one place where files, PIL images and arrays become tensors, and tensors become files.

An image is a uint8 RGB tensor (3, H, W); a clip is (F, 3, H, W).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reward_models.asking import ask
from reward_models.base import RewardBatch, RewardOutput, Scorer, output_of_pieces
from reward_models.common.errors import RewardError
from reward_models.common.files import replacing
from reward_models.common.image_files import (
    eight_bits,
    frames_and_rate,
    header_of,
    opened,
    reading,
    require_fits,
    still_of,
)
from reward_models.common.suffixes import VIDEO_SUFFIXES
from reward_models.common.video_files import read_video


class UnshowableError(RewardError):
    """An object was given that is neither an image nor a clip."""


WEBP_LONGEST = 16_383
"""Pixels a side of a WebP, as its format has it."""


def to_pil(image: Tensor) -> Image.Image:
    """Return a uint8 (3, H, W) tensor, on any device, as an RGB image."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(f"An image is uint8 (3, H, W). Got {image.dtype} {tuple(image.shape)}.")
    return Image.fromarray(image.detach().cpu().permute(1, 2, 0).contiguous().numpy())


def from_pil(image: Image.Image) -> Tensor:
    """Return an image of any mode as a uint8 RGB tensor (3, H, W); what is transparent shows white, as in most viewers.

    Raises:
        RewardError: its values have no known range; see `image_files.eight_bits`.
    """
    shown = eight_bits(image)
    if shown.mode == "RGBA":
        shown = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown).convert("RGB")
    return torch.from_numpy(np.array(shown)).permute(2, 0, 1).contiguous()


def save_media(media: Tensor, path: Path, fps: float = 0.0) -> None:
    """Write an image (3, H, W) or a clip (F, 3, H, W) as WebP, so that reading it gives the same bytes.

    Args:
        media: uint8 RGB.
        path: ends in .webp; no reader sees half a file.
        fps: frames per second of a clip.

    Raises:
        RewardError: it is too large for WebP.
    """
    height, width = media.shape[-2:]
    if max(height, width) > WEBP_LONGEST:
        raise RewardError(
            f"An image that is kept as WebP has at most {WEBP_LONGEST:,} pixels a side. Got {width:,} x {height:,}. "
            "Make it smaller."
        )
    first, *others = (to_pil(frame) for frame in (media[None] if media.ndim == 3 else media))
    options = {} if media.ndim == 3 else clip_options(others, fps)
    with replacing(path) as temporary:
        first.save(temporary, format="WEBP", lossless=True, quality=20, method=2, **options)


def clip_options(others: Sequence[Image.Image], fps: float) -> dict[str, Any]:
    """Return what Pillow needs to write a WebP of several frames.

    Encoders merge equal frames into one that is shown longer, and of a clip that stands still they keep no time at all:
    XMP data say the number of frames and the rate.

    Args:
        others: all frames but the first.
        fps: frames per second.
    """
    return {
        "save_all": True,
        "append_images": list(others),
        "duration": round(1000 / fps),
        "loop": 0,
        "xmp": f"frames={len(others) + 1} fps={fps:.6g}".encode(),
    }


def read_media(image: Image.Image) -> Tensor:
    """Return the pixels of an opened image; see `media_of`."""
    return media_of(image)[0]


def media_of(image: Image.Image, name: object = "The image") -> tuple[Tensor, float | None]:
    """Read an opened image: what `save_media` wrote, and files of others.

    Args:
        image: opened; the frame that it is at does not matter.
        name: of its file, for messages.

    Returns:
        (3, H, W) and None, or of an animation (F, 3, H, W) and its frames per second, None where it does not say it.

    Raises:
        RewardError: it holds too much, or has no known range of values.
        Exception: whatever its decoder raises; see `image_files.reading`.
    """
    head = header_of(image)
    require_fits(name, head.height, head.width, 1)
    if not head.moves:
        return from_pil(still_of(image)), None
    frames, counts, rate = frames_and_rate(image, name)
    return _clip(map(from_pil, frames), counts), rate


def _clip(frames: Iterable[Tensor], counts: Sequence[int]) -> Tensor:
    """Return frames (3, H, W), each as often as it counts, as one tensor (F, 3, H, W), without a copy of them all."""
    clip: Tensor | None = None
    start = 0
    for frame, count in zip(frames, counts, strict=True):
        if clip is None:
            clip = torch.empty((sum(counts), *frame.shape), dtype=torch.uint8)
        clip[start : start + count] = frame
        start += count
    assert clip is not None
    return clip


def open_media(path: str | Path) -> tuple[Tensor, float | None]:
    """Read an image or a video file, turned as its EXIF data or its display matrix say.

    Args:
        path: an image, an animated WebP, GIF or PNG, or a video file (which needs the `video` extra).

    Returns:
        (3, H, W) and None, or (F, 3, H, W) and its frames per second.

    Raises:
        RewardError: there is no such file, it cannot be read as one, or it takes too much memory (`TooLargeError`).
    """
    path = Path(path)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        frames, rate = read_video(path)
        with reading(path, "a video"):
            return _clip((torch.from_numpy(frame).permute(2, 0, 1) for frame in frames), [1] * len(frames)), rate
    with opened(path) as image:
        return media_of(image, path)


def open_still(item: Any) -> Tensor:
    """Read an image to edit: what `as_media` takes, as (3, H, W).

    Raises:
        RewardError: it cannot be read, or is a clip.
    """
    media, _ = as_media(item)
    if media.ndim != 3:
        name = item if isinstance(item, str | Path) else "It"
        raise RewardError(f"An image to edit is one still image. {name} has {len(media)} frames. Save one of them.")
    return media


def as_media(item: Tensor | np.ndarray[Any, Any] | Image.Image | str | Path) -> tuple[Tensor, float | None]:
    """Return anything that shows an image or a clip as (3, H, W) or (F, 3, H, W) uint8 RGB, and its frames per second.

    Args:
        item: a path, a PIL image, a uint8 array (H, W, 3) or (F, H, W, 3), or a uint8 tensor (3, H, W) or (F, 3, H, W).

    Raises:
        UnshowableError: it is none of these.
        RewardError: it cannot be read.
    """
    if isinstance(item, (str, Path)):
        return open_media(item)
    if isinstance(item, Image.Image):
        with reading("A PIL image"):
            return media_of(item, "A PIL image")
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (3, 4) and item.shape[-1] == 3:
        return torch.from_numpy(np.moveaxis(item, -1, -3).copy()), None
    if isinstance(item, Tensor) and item.dtype == torch.uint8 and item.ndim in (3, 4) and item.shape[-3] == 3:
        return item, None
    what = f"{item.dtype} of shape {tuple(item.shape)}" if isinstance(item, (Tensor, np.ndarray)) else type(item)
    raise UnshowableError(
        "An image is a path, a PIL image, a uint8 array (H, W, 3) or a uint8 tensor (3, H, W); a clip has its frames "
        f"in front. Got {what}. For floats in [0, 1]: (x * 255).round().to(torch.uint8)."
    )


def score_media(
    scorer: Scorer,
    items: Sequence[Any],
    prompts: Sequence[str],
    metadata: Sequence[Mapping[str, Any]] = (),
    *,
    fps: float | None = None,
    groups: Sequence[int] = (),
    sources: Sequence[Any] = (),
    batch_size: int | None = None,
) -> RewardOutput:
    """Score images or clips of any sizes; those of one size share batches, the order stays.

    Args:
        scorer: the reward model.
        items: S of what `as_media` takes.
        prompts: S prompts.
        metadata: S mappings, or none.
        fps: frames per second of clips that do not say it themselves.
        groups: S group ids, or none: equal prompts are a group.
        sources: S images that the items are edits of, each as `as_media` takes it, or none.
        batch_size: samples given to the scorer at once, at most; None = its own default. A scorer of groups gets whole
            groups, however large.

    Raises:
        RewardError: an item is nothing that shows an image, lengths differ, or the scorer cannot work on them. A file
            that cannot be read, or is a clip among images, fails alone: its score is NaN, and `errors` says why. Where
            none can be read, the first failure is raised.
    """
    for name, values in (("prompts", prompts), ("metadata", metadata), ("groups", groups), ("sources", sources)):
        if len(values) != len(items) and (values or name == "prompts"):
            raise RewardError(f"{name} must have one entry an image. Got {len(values)} for {len(items)} images.")
    failed: dict[int, str] = {}
    opened: dict[int, tuple[Tensor, float | None]] = {}
    originals: dict[int, Tensor] = {}
    for row, item in enumerate(items):
        try:
            opened[row] = as_media(item)
            if sources:
                originals[row] = open_still(sources[row])
        except UnshowableError:
            raise
        except RewardError as error:
            opened.pop(row, None)
            failed[row] = str(error)
    if items and not opened:
        raise RewardError(failed[0])
    wrong = [row for row, (media, _) in opened.items() if _kind(media) not in scorer.spec.media]
    for row in wrong if len(wrong) < len(opened) else ():  # where all are, the scorer says so itself
        del opened[row]
        kinds = " and ".join(scorer.spec.media)
        failed[row] = f"The reward {scorer.spec.name} scores {kinds}s. This is another kind."
    pieces: list[tuple[list[int], RewardOutput]] = []
    alike: dict[Any, list[int]] = {}
    for row, (media, own_fps) in opened.items():
        alike.setdefault((media.shape, own_fps or fps), []).append(row)
    keys = list(groups) if groups else list(prompts)
    for (_, rate), members in alike.items():
        whole = [keys[i] for i in members] if scorer.spec.scope == "group" else ()
        for piece in batches_of(members, batch_size or scorer.spec.batch_size, whole):
            batch = RewardBatch(
                torch.stack([opened[i][0] for i in piece]),
                [prompts[i] for i in piece],
                [metadata[i] for i in piece] if metadata else (),
                rate,
                [groups[i] for i in piece] if groups else (),
                [originals[i] for i in piece] if sources else (),
            )
            pieces.append((piece, ask(scorer, batch, scorer.spec.name)))
    return output_of_pieces(pieces, len(items), failed)


def _kind(media: Tensor) -> str:
    return "video" if media.ndim == 4 else "image"


def batches_of(rows: Sequence[int], batch_size: int, groups: Sequence[Any] = ()) -> list[list[int]]:
    """Return rows in batches of at most `batch_size`; with groups, whole groups, as many as fit and at least one.

    Args:
        rows: any integers.
        batch_size: at least 1.
        groups: the group of each row, or none.
    """
    if not groups:
        return [list(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    members_of: dict[Any, list[int]] = {}
    for row, group in zip(rows, groups, strict=True):
        members_of.setdefault(group, []).append(row)
    made: list[list[int]] = []
    for members in members_of.values():
        if made and len(made[-1]) + len(members) <= batch_size:
            made[-1].extend(members)
        else:
            made.append(list(members))
    return made
