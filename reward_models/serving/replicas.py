"""The choice among servers of the same reward."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Replica:
    url: str
    failures: int = 0
    not_before: float = 0.0


class Replicas:
    """Servers of the same reward: asked by turns, those that failed after a pause that doubles.

    It has no lock: it is used on the clients' event loop only.

    Args:
        urls: addresses.
        backoff: seconds of the first pause.
        longest: of the pauses, unless a server asks for more.
    """

    def __init__(self, urls: Sequence[str], backoff: float, longest: float = 30.0) -> None:
        self.urls, self.backoff, self.longest = list(urls), backoff, longest
        self._replicas = {url: _Replica(url) for url in urls}
        self._turn = 0

    def begin(self) -> None:
        """Forget old failures if there is no server without one: a new batch tries as if for the first time."""
        now = time.monotonic()
        if all(replica.not_before > now or replica.failures for replica in self._replicas.values()):
            for replica in self._replicas.values():
                replica.failures, replica.not_before = 0, 0.0

    def pick(self) -> tuple[str, float]:
        """Return the server to ask next, and how many seconds to wait before."""
        now = time.monotonic()
        self._turn += 1
        order = [self.urls[(self._turn + step) % len(self.urls)] for step in range(len(self.urls))]
        chosen = min(order, key=lambda url: max(self._replicas[url].not_before, now))
        return chosen, max(0.0, self._replicas[chosen].not_before - now)

    def failed(self, url: str, retry_after: float = 0.0) -> None:
        """Leave a server alone for a while; failures at the same time count once."""
        now = time.monotonic()
        replica = self._replicas[url]
        if now >= replica.not_before:
            replica.failures += 1
        pause = min(self.longest, self.backoff * 2 ** (min(replica.failures, 30) - 1)) * random.uniform(0.5, 1.0)
        replica.not_before = max(replica.not_before, now + max(pause, retry_after))

    def worked(self, url: str) -> None:
        """Return a server that answered to its turn."""
        self._replicas[url].failures, self._replicas[url].not_before = 0, 0.0
