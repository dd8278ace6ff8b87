"""What a page was asked for: the parameters of its address, each read with one check and one sentence."""

from __future__ import annotations

import math
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

    def number(self, name: str) -> float | None:
        """Return a finite number, or None if there is none; a comma may stand for the decimal point.

        Raises:
            GalleryError: it is no number.
        """
        value = self.text(name)
        decimal = value if "." in value else value.replace(",", ".")
        try:
            number = float(decimal) if value else None
        except ValueError:
            number = math.nan
        if number is not None and not math.isfinite(number):
            raise GalleryError(f"{name} must be a number, such as 0.5. Got {value!r}.")
        return number

    def whole(self, name: str, default: int, low: int = 0, high: int = 10**12) -> int:
        """Return a whole number between two others.

        Raises:
            GalleryError: it is not.
        """
        value = self.text(name, str(default))
        if not value.isascii() or not value.isdecimal() or len(value) > 15 or not low <= int(value) <= high:
            raise GalleryError(f"{name} must be a whole number from {low} to {high}. Got {value!r}.")
        return int(value)
