"""How files of pictures and of videos end. Apart from their reader, so that files are found without torch."""

from __future__ import annotations

from typing import Any, TypeGuard

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
VIDEO_SUFFIXES = (".mp4", ".webm", ".mov", ".m4v", ".mkv", ".avi")


def is_image(value: Any) -> TypeGuard[str]:
    """Whether a value beside a prompt names an image: text that ends as files of images do. All else is metadata."""
    return isinstance(value, str) and value.lower().endswith(IMAGE_SUFFIXES)
