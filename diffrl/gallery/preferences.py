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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.paths import inside, is_video
from diffrl.gallery.records import Source
from diffrl.gallery.site import Site
from diffrl.gallery.votes import Side, Vote, source_of
from diffrl.tracking.index import IMAGES, INDEX
from diffrl.trees.record import TREES
from reward_models.common.errors import RewardError
from reward_models.common.webp import is_lossless

COLUMNS = ("caption", "jpg_0", "jpg_1", "label_0", "label_1")


def jsonl(votes: Sequence[Vote], address: Callable[[Side], str | None] | None = None) -> str:
    """Write a line for each vote that prefers one image, of images with their own pixels.

    Args:
        votes: any.
        address: what a line calls a side's image, its absolute path by default; a vote with a None is left out.
    """
    lines = []
    for vote, left, right, label in _decided(votes):
        images = [(address or absolute)(side) for side in (left, right)]
        if None in images:
            continue
        row = {
            "prompt": vote.prompt,
            "chosen": images[1 - label],
            "rejected": images[label],
            **dict(zip(COLUMNS, (vote.prompt, *images, label, 1 - label), strict=True)),
            "voter": vote.voter,
            "time": vote.time,
        }
        lines.append(json.dumps(row, ensure_ascii=True) + "\n")
    return "".join(lines)


def absolute(side: Side) -> str:
    """Return the path of a side's image."""
    return str(Path(side.path) / side.picture)


def exported_address(site: Site) -> Callable[[Side], str | None]:
    """Return what tells where an exported site has the image of a side, relative to the site; None if it is missing."""

    def address(side: Side) -> str | None:
        source = source_of(site.sources, side)
        try:
            return site.links.media(source.key, side.picture) if source and source.media(side.picture) else None
        except GalleryError:
            return None

    return address


def rows(votes: Sequence[Vote], sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Read rows of `COLUMNS` with the bytes of the votes' still images, only from the gallery's own sources."""
    read = []
    for vote, left, right, label in _decided(votes):
        images = [_still(sources, side) for side in (left, right)]
        if None not in images:
            read.append(dict(zip(COLUMNS, (vote.prompt, *images, float(label), 1.0 - label), strict=True)))
    return read


def _decided(votes: Sequence[Vote]) -> Iterator[tuple[Vote, Side, Side, int]]:
    """Yield votes on exact images that prefer one: left, right, and 1 where the left one was preferred, else 0."""
    for vote in votes:
        if vote.choice != "tie" and not _is_reduced(vote):
            left, right = (vote.a, vote.b) if vote.left == "a" else (vote.b, vote.a)
            yield vote, left, right, int(vote.choice == vote.left)


def _is_reduced(vote: Vote) -> bool:
    """Return whether an image of a vote is one of the small ones that runs keep to be looked at."""
    for side in (vote.a, vote.b):
        run = Path(side.path)
        with suppress(GalleryError):
            if (run / INDEX).is_file() and not is_lossless(inside(run, side.picture, [run / IMAGES, run / TREES])):
                return True
    return False


def _still(sources: Sequence[Source], side: Side) -> bytes | None:
    """Read the bytes of an image; None of what moves or cannot be read."""
    from reward_models.common.image_files import frames_of, opened

    source = source_of(sources, side)
    if source is None:
        return None
    try:
        path = Path(source.media(side.picture))
        if is_video(path):
            return None
        data = path.read_bytes()
        with opened(io.BytesIO(data), path) as image:
            if frames_of(image) > 1:
                return None
            image.load()
        return data
    except (GalleryError, RewardError, OSError):
        return None


def parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    """Write rows as a Parquet file.

    Raises:
        GalleryError: no row at all, or pyarrow is not installed.
    """
    if not rows:
        raise GalleryError(
            "The Parquet file holds votes that prefer one still image of this gallery. There is none: ties, videos, "
            "small copies and missing images are left out. Vote first.",
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
    table = pa.Table.from_pylist(list(rows), schema=pa.schema(list(zip(COLUMNS, kinds, strict=True))))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()
