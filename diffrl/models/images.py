"""The one place where tensors become pictures and pictures become tensors.

A picture is a uint8 RGB tensor (3, H, W); a batch of them is (B, 3, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from reward_models.media import to_pil


class BrokenPictureError(ValueError):
    """Pictures hold NaN or inf, which would turn into an arbitrary colour.

    Args:
        rows: which of the batch.
        count: pictures of the batch.
    """

    def __init__(self, rows: Sequence[int], count: int):
        super().__init__(
            f"Images {list(rows)} of {count} hold NaN or inf. "
            "The decoder overflowed (try float32 for the VAE) or its latents were not finite."
        )
        self.rows = rows


def pil_or_frames(media: Tensor) -> Image.Image | Tensor:
    """Return a picture (3, H, W) as a PIL image; a video (F, 3, H, W) as it is."""
    return to_pil(media) if media.ndim == 3 else media


def uint8_from_unit(images: Tensor) -> Tensor:
    """Return round(255 * images), for images of any float dtype in [0, 1]; values outside are clamped.

    The same rounding as diffusers' `VaeImageProcessor`, done in float32 since bfloat16 cannot tell 256 levels apart.

    Args:
        images: (B, 3, H, W), (3, H, W) or, of videos, (B, F, 3, H, W).

    Returns:
        uint8 of the same shape and device.

    Raises:
        BrokenPictureError: a picture holds NaN or inf.
    """
    rows = images if images.ndim > 3 else images[None]
    broken = (~torch.isfinite(rows)).flatten(1).any(dim=1)
    if broken.any():
        raise BrokenPictureError(broken.nonzero().flatten().tolist(), len(broken))
    return images.float().clamp(0, 1).mul(255).round().to(torch.uint8)


def uint8_from_signed(images: Tensor) -> Tensor:
    """Return pictures of a VAE's output: images in [-1, 1] mapped to [0, 1], then `uint8_from_unit`."""
    return uint8_from_unit(images.float() * 0.5 + 0.5)


@dataclass(frozen=True)
class Cell:
    """One caption of a comparison and its pictures, in the order of the grid's labels.

    Args:
        caption: usually the prompt.
        pictures: uint8 (3, H, W) each, of any sizes.
        passed: per picture: True draws it in green with a tick, False in red with a cross, None without a mark.
        notes: per picture: a line written under it, cut to its width; None without one.
    """

    caption: str
    pictures: Sequence[Tensor]
    passed: Sequence[bool | None] = ()
    notes: Sequence[str | None] = ()


Font = ImageFont.FreeTypeFont
PAPER, INK, FAINT = (250, 250, 248), (38, 40, 44), (118, 122, 130)
EDGE, GREEN, RED = (216, 217, 220), (46, 140, 87), (205, 82, 72)
BORDER, GAP, MARGIN, LINES = 4, 10, 28, 2


def comparison_grid(
    cells: Sequence[Cell],
    labels: Sequence[str] = ("before", "after"),
    columns: int = 4,
    picture_size: int = 128,
    title: str | None = None,
) -> Image.Image:
    """Return pictures side by side, one cell a prompt, its caption below.

    Args:
        cells: laid out row by row; each with one picture per label.
        labels: written above the pictures of the top row.
        columns: cells in a row.
        picture_size: side in pixels of the square a picture is fitted into. Small pictures are enlarged by a whole
            number without smoothing, so every pixel can be seen; larger ones are reduced.
        title: written on top.
    """
    for cell in cells:
        if len(cell.pictures) != len(labels) or {len(cell.passed), len(cell.notes)} - {0, len(labels)}:
            rule = f"Each cell has one image (and mark, and note) per label {list(labels)}."
            raise ValueError(f"{rule} Got {cell.caption!r}.")
    if not cells or columns < 1:
        raise ValueError(f"A grid needs at least one cell and one column. Got {len(cells)} and {columns}.")
    columns = min(columns, len(cells))
    noted = any(note for cell in cells for note in cell.notes)
    notes = (note or "" for cell in cells for note in cell.notes)
    written = "".join([title or "", *labels, *(cell.caption for cell in cells), *notes])
    small, text, large = (_font(max(11, round(picture_size * part)), written) for part in (0.11, 0.12, 0.165))
    line = round(text.size * 1.3)
    frame = picture_size + 2 * BORDER
    cell_width = len(labels) * frame + (len(labels) - 1) * GAP
    under = frame + 8 + (round(small.size * 1.5) if noted else 0)
    cell_height = under + LINES * line
    top = MARGIN + (round(large.size * 2.1) if title else 0) + round(small.size * 1.7)
    width = 2 * MARGIN + columns * cell_width + (columns - 1) * MARGIN
    height = top + -(-len(cells) // columns) * (cell_height + 16) - 16 + MARGIN
    grid = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(grid)
    if title:
        draw.text((MARGIN, MARGIN - 4), _fit(title, large, width - 2 * MARGIN, 1)[0], font=large, fill=INK)
    for i, cell in enumerate(cells):
        x = MARGIN + (i % columns) * (cell_width + MARGIN)
        y = top + (i // columns) * (cell_height + 16)
        for j, image in enumerate(cell.pictures):
            left = x + j * (frame + GAP)
            _paste(grid, image, (left, y), picture_size, cell.passed[j] if cell.passed else None)
            if i < columns:
                draw.text((left + frame // 2, y - 6), labels[j], font=small, fill=FAINT, anchor="ms")
            if cell.notes and (note := cell.notes[j]):
                draw.text((left, y + frame + 5), _fit(note, small, frame, 1)[0], font=small, fill=FAINT)
        for k, words in enumerate(_fit(cell.caption, text, cell_width, LINES)):
            draw.text((x, y + under + k * line), words, font=text, fill=INK)
    return grid


def _font(size: int, written: str) -> Font:
    """Return Pillow's own font; it knows ASCII only, so for other letters the wider one that comes with matplotlib."""
    if written.isascii():
        return cast(Font, ImageFont.load_default(size))
    from matplotlib import font_manager

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)


def _paste(grid: Image.Image, sample: Tensor, corner: tuple[int, int], size: int, passed: bool | None) -> None:
    """Paste a framed image with its mark; `corner` is the frame's upper left."""
    x, y = corner
    mark = GREEN if passed else RED
    colour = EDGE if passed is None else mark
    image = _scaled(to_pil(sample), size)
    ImageDraw.Draw(grid).rectangle((x, y, x + size + 2 * BORDER - 1, y + size + 2 * BORDER - 1), fill=colour)
    grid.paste(PAPER, (x + BORDER, y + BORDER, x + BORDER + size, y + BORDER + size))
    grid.paste(image, (x + BORDER + (size - image.width) // 2, y + BORDER + (size - image.height) // 2))
    if passed is not None:
        badge = _badge(colour, passed, max(16, size // 6))
        grid.paste(badge, (x + size + 2 * BORDER - badge.width * 3 // 4, y - badge.height // 4), badge)


def _scaled(image: Image.Image, size: int) -> Image.Image:
    longest = max(image.size)
    if longest <= size:
        factor = size // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    width, height = (max(1, round(side * size / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _badge(colour: tuple[int, int, int], passed: bool, size: int) -> Image.Image:
    """Return a disc with a tick or a cross, drawn large and reduced, so that its edges are smooth."""
    big = Image.new("RGBA", (96, 96), (*PAPER, 0))
    draw = ImageDraw.Draw(big)
    draw.ellipse((0, 0, 95, 95), fill=PAPER)
    draw.ellipse((9, 9, 86, 86), fill=colour)
    strokes = [((29, 50), (43, 63), (68, 35))] if passed else [((34, 34), (62, 62)), ((62, 34), (34, 62))]
    for stroke in strokes:
        draw.line(stroke, fill="white", width=11, joint="curve")
    return big.resize((size, size), Image.Resampling.LANCZOS)


def _fit(caption: str, font: Font, width: int, lines: int) -> list[str]:
    """Break the caption at blanks into at most `lines` lines of `width` pixels; what is left over becomes "..."."""
    wrapped = [""]
    for word in caption.split():
        longer = f"{wrapped[-1]} {word}".strip()
        if font.getlength(longer) <= width or not wrapped[-1]:
            wrapped[-1] = longer
        else:
            wrapped.append(word)
    if len(wrapped) > lines:
        wrapped = [*wrapped[: lines - 1], f"{wrapped[lines - 1]} ..."]
    return [_shorten(line, font, width) for line in wrapped]


def _shorten(line: str, font: Font, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    line = line.removesuffix(" ...")
    while line and font.getlength(f"{line}...") > width:
        line = line[:-1]
    return f"{line.rstrip()}..."


SHOWN, STILL_GAP = 4, 2
"""Frames of a clip in a grid of stills, two by two, and the pixels between them."""

STILL_SIZE = 140
"""Side of such a still in a grid, in pixels."""


def still(media: Tensor) -> Tensor:
    """Return a picture as it is; of a clip, four frames from the first to the last, two by two, in reading order."""
    if media.ndim == 3:
        return media
    first, second, third, last = media[torch.linspace(0, len(media) - 1, SHOWN).round().long()]
    height, width = media.shape[-2:]
    shown = media.new_full((3, 2 * height + STILL_GAP, 2 * width + STILL_GAP), PAPER[0])
    shown[:, :height, :width], shown[:, :height, width + STILL_GAP :] = first, second
    shown[:, height + STILL_GAP :, :width], shown[:, height + STILL_GAP :, width + STILL_GAP :] = third, last
    return shown
