"""What a page was asked for: the parameters of its address, each read with one check and one sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from diffrl.gallery.errors import GalleryError


@dataclass(frozen=True)
class Query:
    """Parameters of a page, each with one value or several.

    Args:
        values: by name, in the order in which they were given. Empty texts count as not given.
    """

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def all(self, name: str) -> list[str]:
        """Return every value of a parameter."""
        return [value for value in self.values.get(name, ()) if value]

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a parameter."""
        return (self.all(name) or [default])[-1]

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        """Return one of some words.

        Raises:
            GalleryError: it is another.
        """
        value = self.text(name, default)
        if value not in options:
            raise GalleryError(f"{name} must be one of {', '.join(options)}. Got {value!r}.")
        return value

    def whole(self, name: str, default: int, low: int = 0, high: int = 10**12) -> int:
        """Return a whole number between two others.

        Raises:
            GalleryError: it is not.
        """
        value = self.text(name, str(default))
        if not value.isascii() or not value.isdecimal() or len(value) > 15 or not low <= int(value) <= high:
            raise GalleryError(f"{name} must be a whole number from {low} to {high}. Got {value!r}.")
        return int(value)
