"""Where a page, an image or a file of the gallery is found: on the server, or beside the page in an exported site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote, urlencode

Value = str | int | float | None | Sequence[str]


class Links(Protocol):
    """Makes addresses for templates."""

    @property
    def exported(self) -> bool:
        """Whether the page will be opened from disk: all rows are on it, and nothing can be asked or sent."""

    def page(self, name: str, **parameters: Value) -> str:
        """Return a page or a file that a page function makes ("compare", "curves.csv"), with its parameters."""

    def media(self, source: str, file: str, size: int | None = None, still: bool = False) -> str:
        """Return an image of a source.

        Args:
            source: key of the source.
            file: relative to the source.
            size: longest edge of a thumbnail, in pixels; None is the image as it lies on the disk.
            still: the first frame of a video.
        """

    def static(self, name: str) -> str:
        """Return a file of the gallery's own: style sheets, scripts."""


def pairs(parameters: dict[str, Value]) -> list[tuple[str, str]]:
    """Return parameters as (name, value), without those that are None or empty; sequences give one pair a value."""
    every = []
    for name, value in parameters.items():
        values = [value] if value is None or isinstance(value, (str, int, float)) else value
        every += [(name, str(one)) for one in values if one not in (None, "")]
    return every


class ServerLinks:
    """Addresses on the running server."""

    exported = False

    def __init__(self, version: str):
        """`version` marks the static files, so that browsers do not keep those of an older gallery."""
        self.version = version

    def page(self, name: str, **parameters: Value) -> str:
        """Return the address of a page on the server."""
        query = urlencode(pairs(parameters))
        return f"/{'' if name == 'home' else name}{'?' + query if query else ''}"

    def media(self, source: str, file: str, size: int | None = None, still: bool = False) -> str:
        """Return the address of an image on the server."""
        query = urlencode(pairs({"size": size, "still": "1" if still else None}))
        return f"/media/{quote(source, safe='')}/{quote(file)}{'?' + query if query else ''}"

    def static(self, name: str) -> str:
        """Return the address of a file of the gallery's own, marked with its version."""
        return f"/static/{name}?v={self.version}"
