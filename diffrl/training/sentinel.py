"""Watches for reward hacking: a training reward that rises while what nobody rewards goes down.

Three things are watched at every held-out evaluation: the held-out rewards against the best that they have been, and of
the training samples since the evaluation before, their diversity within a prompt and their sharpness against the first
ones. Every number is in the metrics whether it is alarming or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffrl.config.method import RewardHackingGuard
from diffrl.errors import GuardStop
from diffrl.rewards.score import WeightedScorer
from diffrl.training.distributed import sum_ranks
from diffrl.training.evaluate import Evaluation
from reward_models import RewardBatch, load_reward

WATCHED = ("reward", "diversity", "sharpness")
Metrics = dict[str, float | int]


@dataclass
class Watch:
    """What the sentinel remembers; plain values, as a checkpoint keeps them.

    Args:
        sums: of the watched numbers since the last evaluation.
        counts: how many iterations each was added up over.
        first: the watched numbers' means up to the first evaluation after the start.
        first_reward: training reward of the first iteration.
        best: of each held-out reward the best mean, and the training reward at the time.
        unit: of each held-out reward the standard deviation of its samples, the first that was not 0.
        alarmed: evaluations in a row with an alarm.
    """

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    first_reward: float | None = None
    best: dict[str, list[float | None]] = field(default_factory=dict)
    unit: dict[str, float] = field(default_factory=dict)
    alarmed: int = 0

    def add(self, values: Mapping[str, float]) -> None:
        """Take in an iteration's numbers; those that are not finite are left out."""
        for name, value in values.items():
            if math.isfinite(value):
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        if self.first_reward is None and math.isfinite(values.get("reward", math.nan)):
            self.first_reward = values["reward"]

    def take(self) -> dict[str, float]:
        """Means since the last call, which begin anew."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means


@dataclass
class Sentinel:
    """Measures, and decides when to speak.

    Args:
        settings: guards.reward_hacking.
        scorers: the held-out rewards.
        accelerator: joins the ranks.
        report: tells the user something that all ranks know.
        watch: what it remembers.
    """

    settings: RewardHackingGuard
    scorers: Sequence[WeightedScorer]
    accelerator: Any
    report: Callable[[str], None]
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        """Make the two scorers of pictures that nothing but the sentinel asks."""
        self._diversity, self._sharpness = load_reward("diversity"), load_reward("sharpness")

    @property
    def on(self) -> bool:
        """Whether anything is measured."""
        return self.settings.action != "off"

    def look(self, images: Tensor, groups: Sequence[int], reward: float) -> Metrics:
        """Measure an iteration's training samples.

        Args:
            images: (S, 3, H, W) or (S, F, 3, H, W) uint8, this rank's.
            groups: S group ids.
            reward: the iteration's mean training reward, over all ranks.

        Returns:
            Means over the samples of all ranks, NaN where none can be judged.
        """
        if not self.on:
            return {}
        stills = images if images.ndim == 4 else images[:, images.shape[1] // 2]
        spread = [self._diversity_of(images, groups, group) for group in dict.fromkeys(groups)]
        found = {
            "diversity": torch.cat(spread),
            "sharpness": torch.cat([self._sharpness_of(part) for part in stills.split(64)]),
        }
        sums = torch.stack([value.double().nansum() for value in found.values()])
        counts = torch.stack([value.isfinite().sum().double() for value in found.values()])
        means = torch.div(*sum_ranks(self.accelerator, torch.cat([sums, counts])).chunk(2)).tolist()
        named = dict(zip(found, means, strict=True))
        self.watch.add({"reward": reward, **named})
        return {f"sentinel/{name}": value for name, value in named.items()}

    def _diversity_of(self, images: Tensor, groups: Sequence[int], group: int) -> Tensor:
        own = images[[row for row, other in enumerate(groups) if other == group]]
        return self._diversity(RewardBatch(own, [""] * len(own))).raw

    def _sharpness_of(self, stills: Tensor) -> Tensor:
        return self._sharpness(RewardBatch(stills, [""] * len(stills))).raw

    def judge(self, found: Evaluation, samples: int) -> Metrics:
        """Compare a held-out evaluation, and the samples since the one before, with what was.

        Args:
            found: the evaluation.
            samples: how many it is of, on all ranks.

        Raises:
            GuardStop: something is wrong, for long enough, and the action is stop.
        """
        if not self.on:
            return {}
        means = self.watch.take()
        alarms: list[str] = []
        metrics: Metrics = {}
        for scorer in self.scorers:
            change = self._change(scorer, found, means.get("reward"))
            if change is None:
                continue
            metrics[f"sentinel/change/{scorer.name}"] = change
            if change < -max(self.settings.held_out_drop, 3 * math.sqrt(2 / samples)) and self._rose(scorer, means):
                alarms.append(
                    f"held-out {scorer.name} is {-change:.2f} standard deviations worse than at its best, while the "
                    "training reward is higher than then"
                )
        alarms += self._pictures(means)
        for name in WATCHED:
            if name in means:
                self.watch.first.setdefault(name, means[name])
        self.watch.alarmed = self.watch.alarmed + 1 if alarms else 0
        metrics["sentinel/alarms"] = len(alarms)
        if alarms and self.watch.alarmed >= self.settings.patience:
            message = f"This looks like reward hacking: {'; '.join(alarms)}. (guards.reward_hacking)"
            if self.settings.action == "stop":
                raise GuardStop(f"{message} The run stops; its last checkpoint is intact.")
            self.report(f"{message} Look at the pictures; compare checkpoints.")
        return metrics

    def _change(self, scorer: WeightedScorer, found: Evaluation, reward: float | None) -> float | None:
        """A held-out reward against its best so far, in standard deviations, <= 0; a new best is remembered."""
        watch, name = self.watch, scorer.name
        if name not in found.means:
            return None
        value = found.means[name] if scorer.scorer.spec.higher_is_better else -found.means[name]
        if found.deviations[name] > 0:
            watch.unit.setdefault(name, found.deviations[name])
        best = watch.best.get(name)
        if best is None or best[0] is None or value >= best[0]:
            watch.best[name] = [value, reward]
            return 0.0
        return (value - best[0]) / watch.unit.get(name, 1.0)

    def _rose(self, scorer: WeightedScorer, means: Mapping[str, float]) -> bool:
        """Whether the training reward is above what it was when the held-out reward was at its best."""
        then = self.watch.best[scorer.name][1]
        then = self.watch.first_reward if then is None else then
        return then is not None and means.get("reward", -math.inf) > then

    def _pictures(self, means: Mapping[str, float]) -> list[str]:
        first, alarms = self.watch.first, []
        if "diversity" in first and means.get("diversity", math.inf) < self.settings.diversity * first["diversity"]:
            share = means["diversity"] / first["diversity"]
            alarms.append(f"the pictures of a prompt differ by {share:.0%} of what they did at first")
        if first.get("sharpness") and means.get("sharpness"):
            ratio = means["sharpness"] / first["sharpness"]
            if ratio > self.settings.sharpness or ratio < 1 / self.settings.sharpness:
                alarms.append(f"pictures are {ratio:.2g} times as sharp as at first")
        return alarms
