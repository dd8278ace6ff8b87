"""Votes as preference pairs for other people's training scripts.

    preferences.jsonl      prompt, chosen, rejected      the columns of TRL's preference type, images as paths
                           caption, jpg_0, jpg_1, label_0, label_1      the same pair as Pick-a-Pic names it, as paths
    preferences.parquet    caption, jpg_0, jpg_1, label_0, label_1      with the images' bytes

The second set of names is read by `train_diffusion_dpo.py` of diffusers and by Salesforce's DiffusionDPO: they open
`io.BytesIO(jpg_0)`, and exchange the two where `label_0 == 0`. A tie has label_0 = 0.5 in Pick-a-Pic; the script of
diffusers does not filter those and would take them for a win of jpg_0, so ties are left out of both files. jpg_0 is the
image that was shown on the left, as it is there. TRL's own trainers learn from texts: with its columns the images
must be loaded by the script that reads them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.paths import inside, is_video
from diffrl.gallery.records import Source
from diffrl.gallery.site import Site
from diffrl.gallery.votes import Side, Vote, source_of
from diffrl.tracking.index import INDEX, PICTURES
from diffrl.trees.record import TREES
from reward_models.common.errors import RewardError
from reward_models.common.webp import is_lossless

COLUMNS = ("caption", "jpg_0", "jpg_1", "label_0", "label_1")


@dataclass(frozen=True)
class Pairs:
    """Rows of the Parquet file, and how many votes are left out of it.

    Args:
        rows: with the columns of `COLUMNS`.
        missing: images that are gone, unreadable, or of a source that is not in this gallery.
        moving: videos, which those scripts cannot read.
        reduced: votes on small images that a run keeps to be looked at.
    """

    rows: Sequence[dict[str, Any]]
    missing: int = 0
    moving: int = 0
    reduced: int = 0


def jsonl(votes: Sequence[Vote], address: Callable[[Side], str | None] | None = None) -> str:
    """Write a line for each vote that prefers one image, of images with their own pixels.

    Args:
        votes: any.
        address: what a line calls a side's image, its absolute path by default; a vote with a None is left out.
    """
    lines = []
    for vote in votes:
        if vote.choice == "tie" or _reduced(vote):
            continue
        left, right, label = _sides(vote)
        pictures = [(address or absolute)(side) for side in (left, right)]
        if None in pictures:
            continue
        row = {
            "prompt": vote.prompt,
            "chosen": pictures[1 - label],
            "rejected": pictures[label],
            "caption": vote.prompt,
            "jpg_0": pictures[0],
            "jpg_1": pictures[1],
            "label_0": label,
            "label_1": 1 - label,
            "voter": vote.voter,
            "time": vote.time,
        }
        lines.append(json.dumps(row, ensure_ascii=True) + "\n")
    return "".join(lines)


def absolute(side: Side) -> str:
    """The path of a side's image."""
    return str(Path(side.path) / side.picture)


def exported_address(site: Site) -> Callable[[Side], str | None]:
    """Where an exported site has the image of a side, relative to the site; None if it is missing."""

    def address(side: Side) -> str | None:
        source = source_of(site.sources, side)
        try:
            return site.links.media(source.key, side.picture) if source and source.media(side.picture) else None
        except GalleryError:
            return None

    return address


def _sides(vote: Vote) -> tuple[Side, Side, int]:
    """Left, right, and 1 where the left one was preferred, else 0."""
    left, right = (vote.a, vote.b) if vote.left == "a" else (vote.b, vote.a)
    return left, right, int(vote.choice == vote.left)


def _reduced(vote: Vote) -> bool:
    """Whether an image of a vote is a small one, which runs keep to be looked at; what is gone is missed elsewhere."""
    for side in (vote.a, vote.b):
        run = Path(side.path)
        with suppress(GalleryError):
            if (run / INDEX).is_file() and not is_lossless(inside(run, side.picture, [run / PICTURES, run / TREES])):
                return True
    return False


def pairs(votes: Sequence[Vote], sources: Sequence[Source]) -> Pairs:
    """Read the bytes of the votes' images, only from the gallery's own sources."""
    rows, missing, moving, reduced = [], 0, 0, 0
    for vote in votes:
        if vote.choice == "tie":
            continue
        if _reduced(vote):
            reduced += 1
            continue
        left, right, label = _sides(vote)
        read = [_still(sources, side) for side in (left, right)]
        if "moving" in read:
            moving += 1
        elif None in read:
            missing += 1
        else:
            values = (vote.prompt, *read, float(label), 1.0 - label)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return Pairs(rows, missing, moving, reduced)


def has_pair(votes: Sequence[Vote], sources: Sequence[Source]) -> bool:
    """Whether the Parquet file has a row; the first one ends the search."""
    return any(pairs([vote], sources).rows for vote in votes)


def _still(sources: Sequence[Source], side: Side) -> bytes | str | None:
    """The bytes of an image; "moving" of a video, None of what cannot be read."""
    from reward_models.common.image_files import frames_of, opened

    source = source_of(sources, side)
    if source is None:
        return None
    try:
        path = Path(source.media(side.picture))
        if is_video(path):
            return "moving"
        data = path.read_bytes()
        with opened(io.BytesIO(data), path) as image:
            if frames_of(image) > 1:
                return "moving"
            image.load()
        return data
    except (GalleryError, RewardError, OSError):
        return None


def parquet(found: Pairs) -> bytes:
    """The rows as a Parquet file.

    Raises:
        GalleryError: no row at all, or pyarrow is not installed.
    """
    if not found.rows:
        raise GalleryError(
            "The Parquet file holds votes that prefer one still image of this gallery. There is none: "
            f"{found.missing} with missing images, {found.moving} of videos, {found.reduced} of small copies. Vote "
            "first.",
            404,
        )
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise GalleryError(
            "Writing Parquet needs pyarrow. It is not installed. Run: pip install 'diffrl[parquet]', or take "
            "preferences.jsonl."
        ) from error
    kinds = (pa.string(), pa.binary(), pa.binary(), pa.float64(), pa.float64())
    table = pa.Table.from_pylist(list(found.rows), schema=pa.schema(list(zip(COLUMNS, kinds, strict=True))))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()
