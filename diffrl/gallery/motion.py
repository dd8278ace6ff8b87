"""Which pictures move: told by their first bytes, without decoding them."""

from __future__ import annotations

from diffrl.errors import DiffrlError
from diffrl.gallery.records import Source

ANIMATED = 0x02
"""Bit of a WebP's extended header, byte 20 (RIFF container specification, "VP8X")."""


def moves(source: Source, file: str | None) -> bool:
    """Whether a picture is an animated WebP or GIF; False for what is missing."""
    if not file or not file.lower().endswith((".webp", ".gif")):
        return False
    try:
        with open(source.media(file), "rb") as opened:
            head = opened.read(21)
    except (OSError, DiffrlError):
        return False
    if head[:4] == b"GIF8":
        return True
    return len(head) == 21 and head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and bool(head[20] & ANIMATED)
