"""Tell WebP files that hold every pixel from those that lost some, by the names of their chunks; nothing is decoded.

Chunks: RFC 9649, sections 2.3 to 2.7.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO


def is_lossless(path: Path) -> bool:
    """Return whether a file is a WebP of which every frame was encoded without loss; False for what is none."""
    try:
        with path.open("rb") as file:
            header = file.read(12)
            if header[:4] != b"RIFF" or header[8:] != b"WEBP":
                return False
            kinds = set(_frames(file))
    except (OSError, struct.error):
        return False
    return kinds == {b"VP8L"}


def _frames(file: BinaryIO) -> list[bytes]:
    """Return the kinds of the image data, b"VP8L" or b"VP8 ", of a still or of each frame."""
    kinds = []
    while len(head := file.read(8)) == 8:
        name, size = head[:4], struct.unpack("<I", head[4:])[0]
        if name == b"ANMF":
            file.seek(16, 1)  # place, size and time of the frame; its own chunks follow
            continue
        if name in (b"VP8L", b"VP8 "):
            kinds.append(name)
        file.seek(size + size % 2, 1)
    return kinds
