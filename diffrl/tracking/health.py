"""Which of a run's checkpoints are healthy, and which is the best: what its held-out evaluations say of them.

An evaluation is ailing when `guards.reward_hacking` raised an alarm at it; a checkpoint is by its own evaluation, or
where there was none, by either of the two around it. Where the guard is off, nothing speaks against any. Where the run
went back to a healthy checkpoint (`guards.recover`), an evaluation is of weights that no later checkpoint has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffrl.files import read_own
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.rewards import REWARDS, lower_is_better

METRICS = "metrics.jsonl"
MOST = 1e300
"""No number of a run; a damaged file may hold integers beyond all floats."""
AILMENTS = ("unsafe", "hacked", "collapsed")
"""What an alarm is called: sentinel/NAME in the metrics is how many of an evaluation's alarms are of it."""


@dataclass(frozen=True)
class Health:
    """A run's evaluations."""

    reward: str  # the first held-out reward
    values: Mapping[int, float]  # of it, by the iteration after which it was measured
    sign: int  # 1 where more is better, else -1
    # of every evaluation that the guard looked at, by iteration: one of `AILMENTS`, or "" if it is healthy
    ailments: Mapping[int, str]
    left: Collection[int] = ()  # iterations after whose evaluation the run went back

    def ailment(self, step: int) -> str:
        """Return what is wrong with an iteration: by its own evaluation, else by those on either side; else empty."""
        before = max((at for at in self.ailments if at <= step), default=None)
        after = min((at for at in self.ailments if at > step or (at == step and at not in self.left)), default=None)
        if before in self.left:  # what lies after it has other weights
            before = None
        return next((ailment for at in (before, after) if at is not None and (ailment := self.ailments[at])), "")

    def best(self, steps: Collection[int]) -> int | None:
        """Return the iteration of the best evaluation among some, of equal ones the earliest; None without any."""
        evaluated = sorted(set(steps) & self.values.keys() - set(self.left))
        return max(evaluated, key=lambda step: self.sign * self.values[step], default=None)

    def healthy(self, steps: Collection[int]) -> int | None:
        """Return the newest healthy iteration among some; None if none is."""
        return max((step for step in steps if not self.ailment(step)), default=None)

    def worth_keeping(self, steps: Collection[int]) -> set[int]:
        """Return which checkpoints must not be deleted for their age: the newest healthy one and the best."""
        return {step for step in (self.healthy(steps), self.best(steps)) if step is not None}

    def warning(self, steps: Collection[int]) -> str | None:
        """Return what the newest evaluation found wrong, and which of the checkpoints is taken; None if it is well."""
        if not (ailment := self.ailment(max(steps, default=0))):
            return None
        sound, best = self.healthy(steps), self.best(steps)
        taken = (
            "no checkpoint is healthy, so generate, evaluate and export want --best, --step or --newest"
            if sound is None
            else f"generate, evaluate and export take iteration {sound}, the newest healthy one"
        )
        rest = "" if best is None else f" The best {self.reward}, {self.values[best]:.3f}, is that of iteration {best}."
        return f"The last evaluation is not healthy ({ailment}): {taken}.{rest}"


def read_health(run_dir: Path, reward: str) -> Health:
    """Return what a run's metrics say.

    Args:
        run_dir: the run.
        reward: its first held-out reward, by which evaluations are ranked.

    Raises:
        DiffrlError: metrics.jsonl cannot be read.
    """
    lower = reward in lower_is_better(_rewards(run_dir), "eval")
    return health_of(read_metrics(run_dir / METRICS), reward, lower)


def health_of(rows: Iterable[Mapping[str, Any]], reward: str, lower: bool) -> Health:
    """Return what rows of metrics say; `lower`: less of the reward is better."""
    by_step = {row["iteration"]: row for row in rows if type(row.get("iteration")) is int}
    values = {step: value for step, row in by_step.items() if _number(value := row.get(f"held_out/{reward}"))}
    judged = {step: _ailment(row) for step, row in by_step.items() if _number(row.get("sentinel/alarms"))}
    left = {step for step, row in by_step.items() if _number(row.get("sentinel/back_to"))}
    return Health(reward, values, -1 if lower else 1, judged, left)


def _ailment(row: Mapping[str, Any]) -> str:
    if not row["sentinel/alarms"]:
        return ""
    return next((name for name in AILMENTS if row.get(f"sentinel/{name}")), "alarming")  # older runs have no names


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST


def _rewards(run_dir: Path) -> Mapping[str, Any]:
    """Return what rewards.json says; nothing where an older diffrl wrote none, or it cannot be read."""
    try:
        record = json.loads(read_own(run_dir / REWARDS))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
