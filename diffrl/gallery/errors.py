"""What the gallery says when it cannot show a page."""

from __future__ import annotations

from diffrl.errors import DiffrlError


class GalleryError(DiffrlError):
    """A page that cannot be shown.

    Args:
        message: one sentence: the rule, what was received, the way out.
        status: HTTP status: 400 a bad question, 404 nothing there, 503 a store that cannot be read.
    """

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status
