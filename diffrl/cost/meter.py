"""Where a run's cost goes: wall time by phase, network evaluations by purpose, pictures decoded and scored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

UNGRADED = ("explore", "rollout", "values", "old", "reference")
"""Purposes of network evaluations in training iterations that carry no gradient."""
PURPOSES = (*UNGRADED, "update", "gate", "evaluation")


class PhaseClock:
    """Adds up seconds per named phase. Of phases within each other, each second counts for the innermost alone.

    Args:
        device: on CUDA the queue is drained at both ends of a phase, so that work counts where it was asked for.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self.seconds: dict[str, float] = {}
        self._within = 0.0  # seconds of phases that were inside of the present one

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block as part of `phase`."""
        start, before, self._within = self._now(), self._within, 0.0
        try:
            yield
        finally:
            whole = self._now() - start
            self.seconds[phase] = self.seconds.get(phase, 0.0) + whole - self._within
            self._within = before + whole

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class CostMeter:
    """Counts what a run asks of its networks, by hooks on the modules themselves, and what it decodes and scores."""

    def __init__(self) -> None:
        self.evaluations = dict.fromkeys(PURPOSES, 0)
        self.by_precision: dict[str, int] = {}
        self.skipped = 0
        self.decodes = 0
        self.reward_calls = 0
        self._purpose = "rollout"
        self._paused = False

    def watch(self, transformers: Iterable[torch.nn.Module], precision: str) -> None:
        """Count the samples that pass through these networks as evaluations in `precision`."""
        self.by_precision.setdefault(precision, 0)
        for transformer in transformers:

            def hook(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
                if self._paused:
                    return
                hidden = kwargs.get("hidden_states", args[0] if args else None)
                assert isinstance(hidden, torch.Tensor)
                count = int(hidden.shape[0])
                self.evaluations[self._purpose] += count
                self.by_precision[precision] += count

            transformer.register_forward_pre_hook(hook, with_kwargs=True)

    @contextmanager
    def purpose(self, name: str) -> Iterator[None]:
        """Inside, evaluations count as made for `name`."""
        before, self._purpose = self._purpose, name
        try:
            yield
        finally:
            self._purpose = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, evaluations are not counted: they belong to looking at the run, not to the method."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def state(self) -> dict[str, float]:
        """All counts under flat names."""
        return {
            **{f"evaluations/{name}": count for name, count in self.evaluations.items()},
            **{f"precision/{name}": count for name, count in self.by_precision.items()},
            "evaluations_skipped": self.skipped,
            "decodes": self.decodes,
            "reward_calls": self.reward_calls,
        }


def training_cost(counts: Mapping[str, float]) -> float:
    """Network evaluations without gradient in training iterations, and twice those with.

    A backward pass costs about two forward passes; counting a trained evaluation twice is the convention of this
    project's tables. The on-policy gate, once a run, and held-out evaluations are left out.

    Args:
        counts: as `CostMeter.state` names them.
    """
    return sum(counts[f"evaluations/{name}"] for name in UNGRADED) + 2 * counts["evaluations/update"]


def network_evaluations(counts: Mapping[str, float]) -> int:
    """All of them, for whatever purpose, held-out evaluations included."""
    return int(sum(counts[f"evaluations/{name}"] for name in PURPOSES))
