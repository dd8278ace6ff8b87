"""The one place where files, PIL images and arrays become tensors, and tensors become files.

A picture is a uint8 RGB tensor (3, H, W); a clip is (F, 3, H, W).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from reward_models.asking import ask
from reward_models.base import RewardBatch, RewardOutput, Scorer, output_of_rows
from reward_models.errors import RewardError
from reward_models.suffixes import VIDEO_SUFFIXES

WEBP_LONGEST = 16_383
"""Pixels a side of a WebP, as its format has it."""


def require_webp(media: Tensor) -> None:
    """Refuse a picture (..., H, W) that WebP cannot hold.

    Raises:
        RewardError: it is too large.
    """
    height, width = media.shape[-2:]
    if max(height, width) > WEBP_LONGEST:
        raise RewardError(
            f"An image that is kept as WebP has at most {WEBP_LONGEST:,} pixels a side. Got {width:,} x {height:,}. "
            "Make it smaller."
        )


def to_pil(picture: Tensor) -> Image.Image:
    """A uint8 (3, H, W) tensor, on any device, as an RGB image."""
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] != 3:
        raise ValueError(f"An image is uint8 (3, H, W). Got {picture.dtype} {tuple(picture.shape)}.")
    return Image.fromarray(picture.detach().cpu().permute(1, 2, 0).contiguous().numpy())


def from_pil(image: Image.Image) -> Tensor:
    """An image of any mode as a uint8 RGB tensor (3, H, W); what is transparent shows white, as in most viewers.

    Raises:
        RewardError: more than 8 bits a channel, which PIL would cut off instead of scale.
    """
    if image.mode.startswith(("I", "F")):
        raise RewardError(f"An image must have 8 bits a channel. Got PIL mode {image.mode}. Convert it first.")
    if image.has_transparency_data:
        image = _on_white(image)
    pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _on_white(image: Image.Image) -> Image.Image:
    layer = image if image.mode == "RGBA" else image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)


def save_webp_lossless(picture: Tensor, path: Path) -> None:
    """Write a uint8 (3, H, W) picture so that reading it gives the same bytes; no reader sees half a file.

    Raises:
        RewardError: it is too large for WebP.
    """
    require_webp(picture)
    temporary = path.with_name(f".{path.name}.tmp")
    to_pil(picture).save(temporary, format="WEBP", lossless=True, quality=20, method=2)
    os.replace(temporary, path)


def save_media(media: Tensor, path: Path, fps: float) -> None:
    """Write a picture (3, H, W) or a clip (F, 3, H, W) as WebP, so that reading it gives the same bytes.

    Args:
        media: uint8 RGB.
        path: ends in .webp.
        fps: frames per second of a clip.

    Raises:
        RewardError: it is too large for WebP.
    """
    if media.ndim == 3:
        save_webp_lossless(media, path)
        return
    require_webp(media)
    first, *others = (to_pil(frame) for frame in media)
    temporary = path.with_name(f".{path.name}.tmp")
    # Encoders merge equal frames into one that is shown longer; the count brings them back.
    first.save(
        temporary,
        format="WEBP",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        lossless=True,
        quality=20,
        method=2,
        xmp=f"frames={len(media)}".encode(),
    )
    os.replace(temporary, path)


def read_media(image: Image.Image) -> Tensor:
    """What `save_media` wrote: (3, H, W), or (F, 3, H, W) where it was a clip."""
    note = image.info.get("xmp", b"")
    if not note.startswith(b"frames="):
        return from_pil(image)
    pieces, durations = _frames(image)
    unit = sum(durations) / int(note.removeprefix(b"frames="))
    times = [round(duration / unit) for duration in durations]
    return torch.stack([piece for piece, shown in zip(pieces, times, strict=True) for _ in range(shown)])


def open_media(path: str | Path) -> tuple[Tensor, float | None]:
    """Read a picture or a video file.

    Args:
        path: an image, an animated WebP, GIF or PNG, or a video file (which needs the `video` extra).

    Returns:
        (3, H, W) and None, or (F, 3, H, W) and its frames per second.

    Raises:
        RewardError: there is no such file, or it cannot be read as one.
    """
    path = Path(path)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return _open_video(path)
    try:
        with Image.open(path) as image:
            if getattr(image, "n_frames", 1) == 1 or path.suffix.lower() in (".tif", ".tiff"):
                return from_pil(ImageOps.exif_transpose(image)), None
            own = image.info.get("xmp", b"").startswith(b"frames=")
            _, durations = _frames(image)
            media = read_media(image) if own else torch.stack(_frames(image)[0])
            return media, 1000 * len(media) / max(sum(durations), 1)
    except FileNotFoundError:
        raise RewardError(f"There is no file {path}. Check the path.") from None
    except UnidentifiedImageError:
        raise RewardError(f"{path} is no image that can be read. Is it whole?") from None
    except Image.DecompressionBombError:
        raise RewardError(f"{path} has more pixels than can be read safely ({Image.MAX_IMAGE_PIXELS} x 2).") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise RewardError(f"{path} cannot be read as an image: {error}.") from error


def _frames(image: Image.Image) -> tuple[list[Tensor], list[float]]:
    """Frames of an animation and how long each is shown, in milliseconds."""
    pieces, durations = [], []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        image.load()
        pieces.append(from_pil(image))
        durations.append(float(image.info.get("duration", 1) or 1))
    return pieces, durations


def _open_video(path: Path) -> tuple[Tensor, float]:
    if not path.exists():
        raise RewardError(f"There is no file {path}. Check the path.")
    try:
        import av
    except ImportError as error:
        raise RewardError(f"Reading {path} needs PyAV. Run: pip install 'diffrl[video]'.") from error
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            fps = float(stream.average_rate or 0)
            frames = [torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)]
    except (av.error.FFmpegError, IndexError) as error:
        raise RewardError(f"{path} cannot be read as a video: {error}. Is it whole?") from error
    if not frames or not fps:
        raise RewardError(f"{path} holds no frames, or does not say how many a second.")
    return torch.stack(frames).permute(0, 3, 1, 2).contiguous(), fps


def as_media(item: Tensor | np.ndarray[Any, Any] | Image.Image | str | Path) -> tuple[Tensor, float | None]:
    """Anything that shows a picture or a clip, as (3, H, W) or (F, 3, H, W) uint8 RGB, and its frames per second.

    Args:
        item: a path, a PIL image, a uint8 array (H, W, 3) or (F, H, W, 3), or a uint8 tensor (3, H, W) or (F, 3, H, W).

    Raises:
        RewardError: it is none of these.
    """
    if isinstance(item, (str, Path)):
        return open_media(item)
    if isinstance(item, Image.Image):
        return from_pil(item), None
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (3, 4) and item.shape[-1] == 3:
        return torch.from_numpy(np.moveaxis(item, -1, -3).copy()), None
    if isinstance(item, Tensor) and item.dtype == torch.uint8 and item.ndim in (3, 4) and item.shape[-3] == 3:
        return item, None
    what = f"{item.dtype} of shape {tuple(item.shape)}" if isinstance(item, (Tensor, np.ndarray)) else type(item)
    raise RewardError(
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
    """Score pictures or clips of any sizes; those of one size share batches, the order stays.

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
        RewardError: an item is no picture, lengths differ, or the scorer cannot work on them.
    """
    for name, values in (("prompts", prompts), ("metadata", metadata), ("groups", groups), ("sources", sources)):
        if len(values) != len(items) and (values or name == "prompts"):
            raise RewardError(f"{name} must have one entry an image. Got {len(values)} for {len(items)} images.")
    rows: list[tuple[float, Mapping[str, float], str | None]] = [(float("nan"), {}, "not scored")] * len(items)
    notes: list[str | None] = [None] * len(items)
    names: dict[str, None] = {}
    opened = [as_media(item) for item in items]
    alike: dict[Any, list[int]] = {}
    for row, (media, own_fps) in enumerate(opened):
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
                [as_media(sources[i])[0] for i in piece] if sources else (),
            )
            output = ask(scorer, batch, scorer.spec.name)
            names.update(dict.fromkeys(output.parts))
            for place, row in enumerate(piece):
                parts = {name: float(values[place]) for name, values in output.parts.items()}
                rows[row] = (float(output.raw[place]), parts, output.errors[place])
                notes[row] = output.note(place)
    return output_of_rows(rows, list(names), notes)


def batches_of(rows: Sequence[int], batch_size: int, groups: Sequence[Any] = ()) -> list[list[int]]:
    """Rows in batches of at most `batch_size`; with groups, whole groups, as many as fit and at least one.

    Args:
        rows: any integers.
        batch_size: at least 1.
        groups: the group of each row, or none.
    """
    if not groups:
        return [list(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    found: dict[Any, list[int]] = {}
    for row, group in zip(rows, groups, strict=True):
        found.setdefault(group, []).append(row)
    made: list[list[int]] = []
    for members in found.values():
        if made and len(made[-1]) + len(members) <= batch_size:
            made[-1].extend(members)
        else:
            made.append(list(members))
    return made
