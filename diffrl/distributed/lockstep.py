"""Ranks that call a sharded network in step, though they have different amounts of work.

FSDP all-gathers the weights in each call, so a call that a rank makes alone never returns. Work is uneven here: a rank
may have fewer chosen candidates, values to complete or units to train. Before each call, and before any other
collective, all ranks therefore vote for the number of the network that they call next, 0 for none, and the highest
number wins. A rank that voted otherwise serves the call: it all-gathers the same weights, computes nothing, and votes
again.

    rank 0    1: calls    0: serves   0: serves   0: goes on
    rank 1    1: calls    1: calls    2: calls    0: goes on    to the next collective
    highest   1           1           2           0

A backward pass cannot be served, as it also reduces gradients. In an update calls must be equal (`equal_calls`): a rank
with fewer micro-batches makes idle passes, whose gradients are 0 (`training.gradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

NOTHING = 0
"""The vote of a rank that has no call to make; networks are numbered from 1."""


class Lockstep:
    """Watches the calls of sharded networks.

    Args:
        networks: as `shard_network` gives them; the ranks' lists are alike.
        most: gives the largest and the smallest of the ranks' numbers.
    """

    def __init__(self, networks: Sequence[nn.Module], most: Callable[[int], tuple[int, int]]):
        self._networks, self._most = list(networks), most
        self._orders: dict[int, list[Any]] = {}
        self._equal = False
        for number, network in enumerate(self._networks, 1):
            # Before FSDP's own hook, which gathers.
            network.register_forward_pre_hook(lambda *_, number=number: self._enter(number), prepend=True)

    def settle(self) -> None:
        """Wait until no rank has a call left to make before what they do together next."""
        while wanted := self._agree(NOTHING):
            self._serve(wanted)

    @contextmanager
    def equal_calls(self) -> Iterator[None]:
        """Require equal calls and backward passes of all ranks within the block; a difference is an error on all."""
        self._equal = True
        try:
            yield
        finally:
            self._equal = False

    def forget(self) -> None:
        """Drop what FSDP remembers of calls that no backward pass followed, and all gradients.

        It fetches weights ahead in the reverse order of the calls it remembers, which may differ between ranks here.
        """
        for number in self._orders:
            self._networks[number - 1].reset_iter_state()  # type: ignore[operator]

    def _enter(self, number: int) -> None:
        while (wanted := self._agree(number)) != number:
            self._serve(wanted)
        if number not in self._orders:
            self._record(number)

    def _agree(self, number: int) -> int:
        most, least = self._most(number)
        if self._equal and most != least:
            raise RuntimeError(
                f"In an update all ranks must call the same sharded networks in the same order. Network {most} was "
                f"called on one rank while another was at {least or 'the end'}. Use train.sharding: none."
            )
        return most

    def _serve(self, number: int) -> None:
        """Take part in another rank's call: gather each group of weights in the order of the call, and free it."""
        if number not in self._orders:
            raise RuntimeError("A rank must have called a sharded network before it serves another rank's call.")
        for module in self._orders[number]:
            module.unshard()
            module.reshard()

    def _record(self, number: int) -> None:
        """Note in which order a call runs through the groups; calls do not differ in it."""
        order: list[Any] = []
        self._orders[number] = order
        root = self._networks[number - 1]
        handles = [
            module.register_forward_pre_hook(lambda module, _: order.append(module))
            for module in root.modules()
            if hasattr(module, "unshard") and module is not root
        ]
        order.append(root)

        def done(*_: Any) -> None:
            for handle in handles:
                handle.remove()
            last.remove()

        last = root.register_forward_hook(done, always_call=True)
