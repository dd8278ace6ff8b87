"""Which images move: told by their first bytes, without decoding them."""

from __future__ import annotations

from diffrl.errors import DiffrlError
from diffrl.gallery.records import Source

ANIMATED = 0x02
"""Bit of a WebP's extended header, byte 20 (RIFF container specification, "VP8X")."""
HEAD = 4096
"""Bytes that are read; the chunk "acTL" of an animated PNG stands near the beginning."""


def moves(source: Source, file: str | None) -> bool:
    """Whether an image is an animated WebP, GIF or PNG; False for videos and for what is missing."""
    if not file or not file.lower().endswith((".webp", ".gif", ".png")):
        return False
    try:
        with open(source.media(file), "rb") as opened:
            head = opened.read(HEAD)
    except (OSError, DiffrlError):
        return False
    if head[:4] == b"GIF8":
        return True
    if head[:4] == b"\x89PNG":
        return b"acTL" in head.partition(b"IDAT")[0]
    return len(head) > 20 and head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and bool(head[20] & ANIMATED)
