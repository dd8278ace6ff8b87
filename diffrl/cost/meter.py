"""Where a run's cost goes: wall time by phase, network evaluations by purpose, pictures decoded and scored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diffrl import pulse
from diffrl.tracking.metrics import OUTSIDE

if TYPE_CHECKING:  # a plan counts as a run does, and needs no tensors
    import torch

UNGRADED = ("explore", "rollout", "audit", "values", "old", "group", "reference")
"""Purposes of network evaluations in training iterations that carry no gradient."""
PURPOSES = (*UNGRADED, "update", "gate", "evaluation")
TREES = "trees"
"""Purpose of evaluations that only show how a rollout went: counted by themselves, and in no sum of the method's."""
PHASES = ("explore", "push", "rollout", "values", "decode", "reward", "old", "update", "other")
"""Where the seconds of an iteration go; "other" is what belongs to none of the others."""
ALWAYS = ("rollout", "decode", "reward", "update", "other")
"""Phases that every run has."""

TRAINED, CHECKPOINTED = 3, 4
"""What an evaluation with gradient costs, in ones without: forward 1, backward 2; with checkpointing forward again."""


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
            with pulse.phase(phase):
                yield
        finally:
            whole = self._now() - start
            self.seconds[phase] = self.seconds.get(phase, 0.0) + whole - self._within
            self._within = before + whole

    def _now(self) -> float:
        if self._cuda:
            import torch

            torch.cuda.current_stream().synchronize()  # not those of rewards, which are computed beside
        return time.perf_counter()


class CostMeter:
    """Counts what a run asks of its networks, by hooks on the modules themselves, and what it decodes and scores."""

    def __init__(self) -> None:
        self.evaluations = dict.fromkeys((*PURPOSES, TREES), 0)
        self.by_precision: dict[str, int] = {}
        self.skipped = 0
        self.decodes = 0
        self.reward_calls = 0
        self._purpose = "rollout"

    def watch(self, transformers: Iterable[torch.nn.Module], precision: str) -> None:
        """Count the samples that pass through these networks as evaluations in `precision`."""
        import torch

        self.by_precision.setdefault(precision, 0)
        for transformer in transformers:

            def hook(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
                hidden = kwargs.get("hidden_states", args[0] if args else None)
                assert isinstance(hidden, torch.Tensor | list)  # a list holds one sample an entry
                count = len(hidden)
                self.evaluations[self._purpose] += count
                if self._purpose != TREES:
                    self.by_precision[precision] += count

            transformer.register_forward_pre_hook(hook, with_kwargs=True)

    def add(self, purpose: str, count: int, precision: str) -> None:
        """Count evaluations that another process has made."""
        self.evaluations[purpose] += count
        self.by_precision[precision] += count

    @contextmanager
    def purpose(self, name: str) -> Iterator[None]:
        """Count evaluations as made for `name` until the block ends."""
        before, self._purpose = self._purpose, name
        try:
            yield
        finally:
            self._purpose = before

    def state(self) -> dict[str, float]:
        """Return all counts under flat names."""
        return {
            **{f"evaluations/{name}": count for name, count in self.evaluations.items()},
            **{f"precision/{name}": count for name, count in self.by_precision.items()},
            "evaluations_skipped": self.skipped,
            "decodes": self.decodes,
            "reward_calls": self.reward_calls,
        }


class IterationCost:
    """What each iteration took: the difference of clock and counts between its begin and its end.

    Args:
        clock: of the run; what belongs to no phase is added to it as "other".
        checkpointing: whether the update computes activations again.
    """

    def __init__(self, clock: PhaseClock, checkpointing: bool = False):
        self._clock = clock
        self._checkpointing = checkpointing
        self._mark = 0.0
        self._seconds: dict[str, float] = {}
        self._counts: Mapping[str, float] = {}

    def begin(self, counts: Mapping[str, float]) -> None:
        """Begin an iteration.

        Args:
            counts: as `CostMeter.state` names them, of the run up to now.
        """
        if not self._mark:  # or what lies between two iterations would be nobody's
            self._mark = self._now()
        self._seconds, self._counts = dict(self._clock.seconds), counts

    def take(self, counts: Mapping[str, float]) -> tuple[dict[str, float | int], dict[str, float], float]:
        """Return an iteration's counts with the run's cost so far, its seconds by phase, and its wall seconds."""
        timed = {name: value - self._seconds.get(name, 0.0) for name, value in self._clock.seconds.items()}
        spent = {phase: timed.get(phase, 0.0) for phase in PHASES if phase != "other"}
        now = self._now()
        wall, self._mark = now - self._mark, now
        spent["other"] = wall - sum(spent.values())
        self._clock.seconds["other"] = self._clock.seconds.get("other", 0.0) + spent["other"]
        metrics: dict[str, float | int] = {
            name: int(count - self._counts.get(name, 0))
            for name, count in counts.items()
            if count and name != "evaluations/evaluation"
        }
        metrics["cost/evaluations"] = int(training_cost(counts, self._checkpointing))
        metrics["cost/seconds"] = sum(self._clock.seconds.get(phase, 0.0) for phase in PHASES)
        seconds = {f"seconds/{phase}": value for phase, value in spent.items() if value or phase in ALWAYS}
        if watching := timed.get("trees", 0.0):
            seconds["seconds/trees"] = watching
        return metrics, seconds, wall

    def _now(self) -> float:
        """Return seconds on the clock without what is no part of training."""
        return time.perf_counter() - sum(self._clock.seconds.get(phase, 0.0) for phase in OUTSIDE)


def training_cost(counts: Mapping[str, float], checkpointing: bool) -> float:
    """Return what training has cost, in network evaluations without gradient; those with one count three or four times.

    The on-policy gate, once a run, and held-out evaluations are left out. `diffrl.cost.prices` prices precisions too.

    Args:
        counts: as `CostMeter.state` names them.
        checkpointing: whether the update computes activations again.
    """
    trained = CHECKPOINTED if checkpointing else TRAINED
    return sum(counts[f"evaluations/{name}"] for name in UNGRADED) + trained * counts["evaluations/update"]


def network_evaluations(counts: Mapping[str, float]) -> int:
    """Return network evaluations for whatever purpose, held-out ones included."""
    return int(sum(counts[f"evaluations/{name}"] for name in PURPOSES))
