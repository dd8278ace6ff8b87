"""Where things are found in an exported site: files beside each other, with names that every file system takes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from hashlib import sha256

from diffrl.gallery.links import Value, pairs
from diffrl.gallery.query import Query

LONGEST = 80
"""Characters of a file's name; some systems take 255 bytes for a whole path."""

DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for itself."""

Keep = Callable[[str, str, int | None, bool], str]


class StaticLinks:
    """Relative addresses without a query, of ASCII letters, digits, dots, dashes and underscores alone.

    A page that is linked to is remembered in `pending`, each once; an image is kept at once.

    Args:
        keep: puts an image (source, file, size, still) into the site and gives its address.
    """

    exported = True

    def __init__(self, keep: Keep):
        self.keep = keep
        self.pending: deque[tuple[str, str, Query]] = deque()
        self.names = Names()
        self._pictures: dict[tuple[str, str, int | None, bool], str] = {}

    def page(self, name: str, **parameters: Value) -> str:
        """Return the file of a page, which is remembered in `pending`."""
        wanted = pairs(parameters)
        stem, dot, suffix = name.partition(".")
        words = "-".join(["index" if name == "home" else stem, *(value for _, value in wanted)])
        file, new = self.names.of(words, dot + suffix or ".html", (name, *wanted))
        if new:
            values: dict[str, list[str]] = {}
            for key, value in wanted:
                values.setdefault(key, []).append(value)
            self.pending.append((file, name, Query(values)))
        return file

    def media(self, source: str, file: str, size: int | None = None, still: bool = False) -> str:
        """Return the file of an image, which is put into the site."""
        wanted = (source, file, size, still)
        if wanted not in self._pictures:
            self._pictures[wanted] = self.keep(*wanted)
        return self._pictures[wanted]

    def static(self, name: str) -> str:
        """Return a file of the gallery's own."""
        return f"static/{name}"


class Names:
    """File names for whatever has to be told apart, different also where case does not count."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._taken: set[str] = set()

    def of(self, words: str, suffix: str, meant: object) -> tuple[str, bool]:
        """Return a readable name, and whether it is new."""
        if meant in self._names:
            return self._names[meant], False
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip(".-")
        plain = slug == re.sub(r"[@/ ]", "-", words) and len(slug) <= LONGEST and not DEVICES.fullmatch(slug)
        name = slug + suffix
        if not plain or name.lower() in self._taken:
            mark = sha256(repr(meant).encode("utf-8", "surrogatepass")).hexdigest()[:10]
            name = f"{slug[:LONGEST].strip('.-') or 'x'}-{mark}{suffix}"
        self._names[meant] = name
        self._taken.add(name.lower())
        return name, True
