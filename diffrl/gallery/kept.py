"""What takes long to make is made once, and kept while there is room: small images, tables, reports, rows of runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Kept(Generic[Made]):
    """Things by a key that changes with whatever they are made of.

    Args:
        limit: what those that are kept may weigh together; the longest unused go first, the last one made stays.
        weigh: what one weighs; each 1 by default.
    """

    def __init__(self, limit: int, weigh: Callable[[Made], int] = lambda made: 1):
        self.limit, self.weigh = limit, weigh
        self._kept: OrderedDict[Hashable, Made] = OrderedDict()
        self._making: set[Hashable] = set()
        self._held = 0
        self._changed = threading.Condition()

    def get(self, key: Hashable, make: Callable[[], Made | None]) -> Made | None:
        """Return what is kept, made now, or made by another who asked before; None is not kept.

        Raises:
            Exception: whatever `make` raises.
        """
        with self._changed:
            self._changed.wait_for(lambda: key in self._kept or key not in self._making)
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

    def _keep(self, key: Hashable, made: Made) -> None:
        self._kept[key] = made
        self._held += self.weigh(made)
        while self._held > self.limit and len(self._kept) > 1:
            self._held -= self.weigh(self._kept.popitem(last=False)[1])
