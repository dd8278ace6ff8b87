"""Watches for runs that go wrong: what nobody rewards goes down, while the training reward rises or falls as well.

The first is reward hacking, the second a collapse. With `guards.safety` unsafe held-out images are an alarm, too. Runs
that do not get anywhere are named: blind, where the reward tells hardly any samples of a prompt apart, and stuck, where
no held-out reward has moved.

Three things are watched at every held-out evaluation: the held-out rewards against the best that they have been, and of
the training samples since the evaluation before, their diversity within a prompt and their sharpness against the first
ones. Every number is in the metrics, alarming or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffrl.config.method import RewardHackingGuard, SafetySettings
from diffrl.distributed.ranks import Ranks
from diffrl.errors import GuardStop
from diffrl.records import Samples
from diffrl.rewards.score import WeightedScorer
from diffrl.training.evaluate import Evaluation
from reward_models import RewardBatch, load_reward

RAW = "reward/"
HELD_OUT = "held_out/"
CURES = {
    "unsafe": ("unsafe images", "Give the reward that finds them a weight in rewards, filter the prompts, or stop."),
    "hacked": ("reward hacking", "Add what falls to rewards, with most of the weight, raise objective.kl, or stop."),
    "collapsed": ("a collapse", "Lower train.learning_rate, or raise objective.kl."),
}
"""Of what an alarm is called, what it says, and what to turn."""
BLIND = 0.9
"""Share of groups with equal rewards, or too few scored samples, from which on a run is blind."""
STUCK = 3
"""Evaluations in a row within a standard error of the first, from which on it is stuck."""
Metrics = dict[str, float | int]


@dataclass
class MonitorState:
    """What the monitor remembers; plain values, as a checkpoint keeps them.

    Args:
        sums: of the training rewards' means, raw, and of diversity and sharpness, since the last evaluation.
        counts: how many iterations each was added up over.
        first: the first iteration's values of the same.
        best: of each held-out reward its best evaluation: mean, deviation, samples, and the rewards' raw means at that
            time, of training ("reward/NAME") and of held-out samples ("held_out/NAME").
        alarmed: evaluations in a row with an alarm.
        recoveries: how often the run has gone back to a healthy checkpoint.
        start: of each held-out reward its first evaluation: mean, deviation and samples.
        unmoved: evaluations in a row in which none was away from there.
        idle: "blind" or "stuck" if that was the last to be said.
    """

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    best: dict[str, dict[str, Any]] = field(default_factory=dict)
    alarmed: int = 0
    recoveries: int = 0
    start: dict[str, dict[str, float]] = field(default_factory=dict)
    unmoved: int = 0
    idle: str = ""

    def add(self, values: Mapping[str, float]) -> None:
        """Take in an iteration's numbers; those that are not finite are left out."""
        for name, value in values.items():
            if math.isfinite(value):
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
                self.first.setdefault(name, value)

    def take(self) -> dict[str, float]:
        """Return means since the last call, which begin anew."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means


@dataclass
class RewardHackingMonitor:
    """Measures, and decides when to speak.

    Args:
        settings: guards.reward_hacking.
        scorers: the held-out rewards.
        ranks: joins the ranks.
        report: tells the user something that all ranks know.
        recoveries: how often the run may go back to a healthy checkpoint (guards.recover).
        safety: guards.safety.
        state: what it remembers.
        alarm: what the last evaluation found, if it is time to act on it; else None.
        verdict: why the run is to stop, once its last row is written; None while it may go on.
    """

    settings: RewardHackingGuard
    scorers: Sequence[WeightedScorer]
    ranks: Ranks
    report: Callable[[str], None]
    recoveries: int = 0
    safety: SafetySettings | None = None
    state: MonitorState = field(default_factory=MonitorState)
    alarm: str | None = None
    verdict: str | None = None

    def __post_init__(self) -> None:
        """Make the two scorers of pictures that nothing but the monitor asks."""
        self._diversity, self._sharpness = load_reward("diversity"), load_reward("sharpness")

    @property
    def on(self) -> bool:
        """Whether anything is measured."""
        return self.settings.action != "off"

    def measure(self, samples: Samples, metrics: Mapping[str, float]) -> Metrics:
        """Measure an iteration's training samples.

        Args:
            samples: this rank's.
            metrics: with the raw mean of each training reward that was asked, over all ranks, as "reward/<name>".

        Returns:
            Means over the samples of all ranks, NaN where none can be judged.
        """
        if not self.on:
            return {}
        images = samples.rollout.images
        groups = [samples.rollout.batch.groups[row] for row in samples.rollout.forest.sample_prompt.tolist()]
        rewards = {name: metrics[f"{RAW}{name}"] for name in samples.table.raw}
        stills = images if images.ndim == 4 else images[:, images.shape[1] // 2]
        spread = [self._diversity_of(images, groups, group) for group in dict.fromkeys(groups)]
        measured = {
            "diversity": torch.cat(spread),
            "sharpness": torch.cat([self._sharpness_of(part) for part in stills.split(64)]),
        }
        sums = torch.stack([value.double().nansum() for value in measured.values()])
        counts = torch.stack([value.isfinite().sum().double() for value in measured.values()])
        groups_here = torch.tensor([float(len(spread))], dtype=torch.float64)
        *joined, all_groups = self.ranks.sum(torch.cat([sums, counts, groups_here])).tolist()
        named = {name: joined[i] / joined[i + 2] if joined[i + 2] else math.nan for i, name in enumerate(measured)}
        useless = metrics.get("groups/zero_spread", 0) + metrics.get("groups/dropped", 0)
        self.state.add(
            {**named, **{f"{RAW}{name}": value for name, value in rewards.items()}, "blind": useless / all_groups}
        )
        return {f"sentinel/{name}": value for name, value in named.items()}

    def _diversity_of(self, images: Tensor, groups: Sequence[int], group: int) -> Tensor:
        members = images[[row for row, other in enumerate(groups) if other == group]]
        return self._diversity(RewardBatch(members, [""] * len(members))).raw

    def _sharpness_of(self, stills: Tensor) -> Tensor:
        return self._sharpness(RewardBatch(stills, [""] * len(stills))).raw

    def compare(self, evaluation: Evaluation, samples: int, rewards: Sequence[WeightedScorer]) -> Metrics:
        """Compare a held-out evaluation, and the samples since the one before, with what was.

        Args:
            evaluation: of held-out prompts.
            samples: how many it drew, on all ranks.
            rewards: the training rewards with their weights now; with these weights "then" and "now" are compared.
        """
        if not self.on:
            return {}
        means = self.state.take()
        unsafe, metrics = self._unsafe(evaluation)
        hacked: list[str] = []
        collapsed: list[str] = []
        # of fewer, what is left may be no fair sample
        judged = [one for one in self.scorers if evaluation.counts.get(one.name, 0) >= max(2, samples / 2)]
        for scorer in judged:
            change, alarming = self._change(scorer, evaluation, means)
            metrics[f"sentinel/change/{scorer.name}"] = change
            if alarming:
                worse = f"held-out {scorer.name} is {-change:.2f} standard deviations worse than at its best"
                if self._rose(scorer, evaluation, means, rewards):
                    hacked.append(f"{worse}, while the training reward is higher than then")
                else:
                    collapsed.append(f"{worse}, and the training reward is no higher than then")
        (collapsed if collapsed and not hacked else hacked).extend(self._pictures(means))
        ailments = {"unsafe": unsafe, "hacked": hacked, "collapsed": collapsed}
        alarms = [alarm for some in ailments.values() for alarm in some]
        self.state.alarmed = self.state.alarmed + 1 if alarms else 0
        metrics |= {
            "sentinel/alarms": len(alarms),
            **{f"sentinel/{name}": len(some) for name, some in ailments.items()},
        }
        idle, why = self._idle(evaluation, [scorer.name for scorer in judged], means)
        idle = "" if alarms else idle
        metrics |= {f"sentinel/{name}": int(idle == name) for name in ("blind", "stuck")}
        if idle and idle != self.state.idle:
            self.report(f"This run is {idle}: {why} (guards.reward_hacking)")
        self.state.idle = idle
        self.alarm = None
        if alarms and self.state.alarmed >= self.settings.patience:
            what, cure = CURES[next(name for name, some in ailments.items() if some)]
            self.alarm = f"This looks like {what}: {'; '.join(alarms)}. {cure} (guards.reward_hacking)"
        return metrics

    @property
    def recovers(self) -> bool:
        """Whether an alarm is answered by going back to a healthy checkpoint, which is left to the caller."""
        return self.state.recoveries < self.recoveries

    def act(self) -> None:
        """Answer an alarm as the guard's action says, where the run does not go back."""
        if self.settings.action == "stop":
            self.verdict = f"{self.alarm} The run stops; its checkpoints are intact."
        else:
            self.report(f"{self.alarm} Until it is well again, export takes the newest healthy checkpoint.")

    def check(self) -> None:
        """End the run if the last evaluation was bad enough; called when that evaluation is written down.

        Raises:
            GuardStop: it was, and the action is stop.
        """
        if self.verdict is not None:
            raise GuardStop(self.verdict)

    def _unsafe(self, evaluation: Evaluation) -> tuple[list[str], Metrics]:
        """Return the alarm of unsafe held-out images, if there are too many of them, and their share of all ranks'."""
        if self.safety is None:
            return [], {}
        name, limit = self.safety.reward, self.safety.limit
        judge = next(one for one in self.scorers if one.name == name)
        sign, side = (-1, "less") if judge.scorer.spec.higher_is_better else (1, "more")
        risk = sign * evaluation.table.raw[name].double()
        unsafe = risk.isnan() | (risk >= sign * limit)
        total, bad, lost = self.ranks.sum(
            torch.tensor([unsafe.numel(), unsafe.sum(), risk.isnan().sum()], dtype=torch.float64)
        ).tolist()
        ranked = [(value, prompt.text) for value, prompt in zip(risk.tolist(), evaluation.prompts, strict=True)]
        scored = [one for part in self.ranks.gather_objects(ranked) for one in part if not math.isnan(one[0])]
        share = bad / total
        metrics: Metrics = {"sentinel/unsafe_share": share}
        if share <= self.safety.share:
            return [], metrics
        worst, prompt = max(scored, default=(math.nan, ""))
        missing = f", {lost:.0f} of them for want of a score" if lost else ""
        shown = f"; the worst, {sign * worst:.2g}, is of {prompt!r}" if scored else ""
        return [
            f"{bad:.0f} of {total:.0f} held-out images have {name} of {limit:g} or {side}"
            f"{missing}{shown} (guards.safety)"
        ], metrics

    def _idle(self, evaluation: Evaluation, judged: Sequence[str], means: Mapping[str, float]) -> tuple[str, str]:
        """Return "blind" or "stuck" and what says so; both empty for a run that gets anywhere, or is young."""
        moved = False
        for name in judged:
            now = _measured(evaluation, name)
            then = self.state.start.setdefault(name, now)
            moved |= abs(now["mean"] - then["mean"]) > _standard_error(now, then)
        self.state.unmoved = self.state.unmoved + 1 if means and judged and not moved else 0
        if means.get("blind", 0.0) >= BLIND:
            return "blind", (
                f"since the evaluation before, {means['blind']:.0%} of the groups had no spread or too few scores, "
                "so hardly anything tells a prompt's better images from its worse ones. Look at the rewards (diffrl "
                "score), draw more samples a prompt, or take prompts that are neither too easy nor too hard."
            )
        if self.state.unmoved >= STUCK:
            return "stuck", (
                f"at {self.state.unmoved} evaluations in a row {', '.join(judged)} was within a standard error of its "
                "start. Raise train.learning_rate, lower objective.kl, or raise eval.samples to see smaller changes."
            )
        return "", ""

    def _change(self, scorer: WeightedScorer, evaluation: Evaluation, means: Mapping[str, float]) -> tuple[float, bool]:
        """Return a held-out reward against its best so far, in standard deviations, <= 0; and whether that is too far.

        The unit is the larger deviation of the two evaluations, and the fall must be four standard errors of the
        difference: a pass or fail that begins near 0 has hardly any deviation then.
        """
        name, best, now = scorer.name, self.state.best.get(scorer.name), _measured(evaluation, scorer.name)
        value = now["mean"] if scorer.scorer.spec.higher_is_better else -now["mean"]
        if best is None or value >= best["mean"]:
            raws = {key: mean for key, mean in means.items() if key.startswith(RAW)}
            self.state.best[name] = {**now, "mean": value, "rewards": {**raws, **_held_out(evaluation)}}
            return 0.0, False
        fall = best["mean"] - value
        unit = max(best["deviation"], now["deviation"]) or fall
        error = _standard_error(best, now)
        return -fall / unit, fall > self.settings.held_out_drop * unit and fall > 4 * error

    def _rose(
        self,
        scorer: WeightedScorer,
        evaluation: Evaluation,
        means: Mapping[str, float],
        rewards: Sequence[WeightedScorer],
    ) -> bool:
        """Return whether the training reward is above what it was when the held-out reward was at its best.

        A training reward that evaluations measure is compared there: training prompts change, and may be easier now.
        Before the first iteration there was none: the first iteration's is taken.
        """
        then = {**self.state.first, **(self.state.best[scorer.name]["rewards"] or {})}
        now = {**means, **_held_out(evaluation)}
        measured = {one.name: one.scorer.spec for one in self.scorers}
        rise = 0.0
        for r in rewards:
            key = f"{HELD_OUT}{r.name}"
            if measured.get(r.name) != r.scorer.spec or key not in now or key not in then:
                key = f"{RAW}{r.name}"
            if r.weight and key in now and key in then:
                rise += r.weight * (now[key] - then[key]) / r.scale
        return rise > 0

    def _pictures(self, means: Mapping[str, float]) -> list[str]:
        first, alarms = self.state.first, []
        if "diversity" in first and means.get("diversity", math.inf) < self.settings.diversity * first["diversity"]:
            share = means["diversity"] / first["diversity"]
            alarms.append(f"the images of a prompt differ by {share:.0%} of what they did at first")
        if first.get("sharpness") and "sharpness" in means:
            ratio = means["sharpness"] / first["sharpness"]
            if ratio > self.settings.sharpness or ratio < 1 / self.settings.sharpness:
                alarms.append(f"images are {ratio:.2g} times as sharp as at first")
        return alarms


def _held_out(evaluation: Evaluation) -> dict[str, float]:
    return {f"{HELD_OUT}{name}": mean for name, mean in evaluation.means.items()}


def _measured(evaluation: Evaluation, name: str) -> dict[str, float]:
    """Return a held-out reward's mean, its samples' deviation, and the mean's standard error over prompts.

    Of one prompt nothing is known of others: a whole deviation stands for the error.
    """
    deviation, error = evaluation.deviations[name], evaluation.estimates[name].error
    return {"mean": evaluation.means[name], "deviation": deviation, "error": deviation if error is None else error}


def _standard_error(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return that of the difference of two means, as `_measured` gives them."""
    return math.hypot(one["error"], other["error"])
