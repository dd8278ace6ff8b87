"""Wall time by phase, so that a run can show where its seconds went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class PhaseClock:
    """Adds up seconds per named phase. Phases may not nest: inner time would count twice.

    Args:
        device: on CUDA the queue is drained at both ends of a phase, so that work counts where it was asked for.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block as part of `phase`."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._now() - start

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class NetworkCounter:
    """Counts the samples that pass through transformers' forwards, by a hook on the modules themselves."""

    def __init__(self, transformers: Iterable[torch.nn.Module]):
        self.count = 0
        for transformer in transformers:
            transformer.register_forward_pre_hook(self._hook, with_kwargs=True)

    def _hook(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        hidden = kwargs.get("hidden_states", args[0] if args else None)
        assert isinstance(hidden, torch.Tensor)
        self.count += int(hidden.shape[0])
