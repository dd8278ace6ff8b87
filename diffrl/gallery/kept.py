"""What takes long to make is made once, a few at a time, and kept while there is room: small images, tables, reports.

Whoever asks for what another is making already waits for that. Where too many wait the next are asked to come again, so
that they do not take every thread that answers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from diffrl.gallery.errors import GalleryError

Made = TypeVar("Made")
RETRY_AFTER = 2
"""Seconds after which a visitor who was refused may ask again."""


class Kept(Generic[Made]):
    """Things by a key that changes with whatever they are made of.

    Args:
        limit: what those that are kept may weigh together; the longest unused go first, the last one made stays.
        weigh: what one weighs.
        makers: how many are made at one time; None: any number.
        waiting: who may wait for a maker; None: everybody.
    """

    def __init__(
        self,
        limit: int,
        weigh: Callable[[Made], int],
        makers: int | None = None,
        waiting: int | None = None,
    ):
        self.limit, self.weigh, self.makers, self.waiting = limit, weigh, makers, waiting
        self._kept: OrderedDict[Hashable, Made] = OrderedDict()
        self._making: set[Hashable] = set()
        self._held = self._waiting = 0
        self._changed = threading.Condition()

    def get(self, key: Hashable, make: Callable[[], Made | None]) -> Made | None:
        """Return what is kept, or made now; None, which is not kept, if `make` gives it.

        Raises:
            GalleryError: too many wait (503); whatever `make` raises.
        """
        with self._changed:
            self._wait(key)
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            self._making.add(key)
        made = None
        try:
            made = make()
        finally:
            with self._changed:
                self._making.remove(key)
                if made is not None:
                    self._keep(key, made)
                self._changed.notify_all()
        return made

    def clear(self) -> None:
        """Forget everything."""
        with self._changed:
            self._kept.clear()
            self._held = 0

    def _wait(self, key: Hashable) -> None:
        """Return once the key is there, or may be made."""
        if self._is_free(key):
            return
        if self.waiting is not None and self._waiting >= self.waiting:
            raise GalleryError(
                "The gallery draws for as many visitors as it does at one time. Load the page again in a moment.",
                503,
                RETRY_AFTER,
            )
        self._waiting += 1
        try:
            self._changed.wait_for(lambda: self._is_free(key))
        finally:
            self._waiting -= 1

    def _is_free(self, key: Hashable) -> bool:
        busy = self.makers is not None and len(self._making) >= self.makers
        return key in self._kept or not (busy or key in self._making)

    def _keep(self, key: Hashable, made: Made) -> None:
        self._kept[key] = made
        self._held += self.weigh(made)
        while self._held > self.limit and len(self._kept) > 1:
            self._held -= self.weigh(self._kept.popitem(last=False)[1])
