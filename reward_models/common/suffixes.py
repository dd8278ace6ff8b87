"""How files of images, of videos and of captions end. Apart from their readers: files are found without torch."""

from __future__ import annotations

from typing import Any, TypeGuard

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
SIDECARS = (".txt", ".caption", ".json")
"""Files beside one image that hold its caption; the first that is there counts."""
TABLES = (".jsonl", ".csv", ".parquet")
"""Files that hold captions of many images."""
VIDEO_SUFFIXES = (".mp4", ".webm", ".mov", ".m4v", ".mkv", ".avi")


def is_image(value: Any) -> TypeGuard[str]:
    """Return whether a value beside a prompt names an image: text that ends as files of images do."""
    return isinstance(value, str) and value.lower().endswith(IMAGE_SUFFIXES)
