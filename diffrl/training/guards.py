"""What ends, skips or reports a run that has stopped making sense.

Every function states what it saw; `GuardStop` ends the run with exit code 3, and what was saved before stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from diffrl.config.method import GuardSettings
from diffrl.config.schema import Config
from diffrl.errors import GuardStop
from diffrl.records import Prompt, RewardTable

Report = Callable[[str], None]
Action = Literal["warn", "skip", "stop"]

CLIP_SHARE = 0.2
"""Share of the clip that rounding may take before there is a warning."""
USUAL_CAUSES = (
    "Usual causes: the update runs in another precision than the rollout; something random (dropout) is active in one "
    "of them; the conditioning or guidance differs; latents were scored before they were rounded for storage; the "
    "noise was scaled and its density was not."
)


def check_on_policy(errors: Sequence[tuple[int, float]], sigmas: Tensor, tolerance: float) -> float:
    """Refuse to train a policy whose ratio is not 1 before its first update.

    Args:
        errors: (step, max |ratio - 1|) of every trained step.
        sigmas: (T + 1,) the grid, for the message.
        tolerance: what is still rounding.

    Returns:
        The largest error.

    Raises:
        GuardStop: above tolerance; names the first step that broke.
    """
    worst = max(error if math.isfinite(error) else math.inf for _, error in errors)
    if worst <= tolerance:
        return worst
    broken = next(step for step, error in errors if not error <= tolerance)
    table = ", ".join(f"step {step}: {error:.2e}" for step, error in errors)
    raise GuardStop(
        "Before the first update the ratio must be 1 at every trained step (guards.on_policy_tolerance "
        f"{tolerance:g}). It breaks at step {broken} (sigma {float(sigmas[broken]):.3f}). max |ratio - 1|: {table}. "
        f"{USUAL_CAUSES}"
    )


def clip_note(error: float, config: Config) -> str | None:
    """Say how much of the clip is rounding: max |ratio - 1| before the first update beside it; None without a clip.

    Args:
        error: as `check_on_policy` returns it.
        config: of the run.
    """
    if config.objective.clips is None:
        return None
    clip = min(config.objective.clips)
    note = f"Before the first update max |ratio - 1| is {error:.2g}, {error / clip:.0%} of the clip, {clip:g}."
    if config.retakes_densities:
        again = "" if config.train.updates_per_iteration == 1 else ", which costs an evaluation of each later step"
        return f"{note} It is left out of the ratio: densities are taken in the update's own batches{again}."
    if error <= CLIP_SHARE * clip:
        return note
    return (
        f"Warning: {note} So much of what the clip allows is rounding. Raise the clip, make rollout.micro_batch and "
        "train.micro_batch alike, or compute more exactly (TF32 off)."
    )


def failed_samples(
    table: RewardTable, groups: Tensor, prompts: Sequence[Prompt], action: Action, report: Report
) -> Tensor:
    """Return which samples may enter group statistics.

    Args:
        table: rewards of S samples.
        groups: (S,) their group ids.
        prompts: S prompts.
        action: warn leaves the sample out, skip its whole group, stop ends the run.
        report: takes the message.

    Returns:
        (S,) bool.
    """
    if bool(table.ok.all()):
        return table.ok
    first = int(torch.nonzero(~table.ok)[0])
    message = (
        f"{int((~table.ok).sum())} of {len(table.ok)} samples have no usable reward; "
        f"the first is {prompts[first].text!r}: {table.errors[first]}."
    )
    if action == "stop":
        raise GuardStop(f"{message} The run stops because guards.nonfinite_reward is stop.")
    report(f"{message} {'Their groups are' if action == 'skip' else 'They are'} left out. (guards.nonfinite_reward)")
    if action == "warn":
        return table.ok
    return table.ok & ~torch.isin(groups, groups[~table.ok])


@dataclass
class Learning:
    """What a run's updates amounted to; part of its checkpoints.

    Args:
        updates: those that were made, and had a gradient other than 0.
        idle: iterations in a row, up to now, without one.
    """

    updates: int = 0
    idle: int = 0


@dataclass
class UpdateGuard:
    """Decides, before an optimiser update, whether it may happen, and watches what there is to learn from.

    Args:
        settings: the guards section.
        report: takes messages.
    """

    settings: GuardSettings
    report: Report
    flat_iterations: int = field(default=0)
    learning: Learning = field(default_factory=Learning)

    def allows(self, loss: float, norm: float, ratio_error: float, approx_kl: float, culprits: Sequence[str]) -> bool:
        """Return whether to step; False skips this update.

        Args:
            loss: of the update.
            norm: of its gradient.
            ratio_error: max |ratio - 1| over its edges.
            approx_kl: mean estimated divergence from the policy that drew them.
            culprits: prompts of edges whose loss is not finite.
        """
        s = self.settings
        named = f" Prompts: {'; '.join(repr(p) for p in culprits[:3])}." if culprits else ""
        checks: list[tuple[bool, Action, str]] = [
            (not math.isfinite(loss), s.nonfinite_loss, f"The loss is {loss}.{named} (guards.nonfinite_loss)"),
            (
                math.isfinite(loss) and not math.isfinite(norm),
                s.nonfinite_gradient,
                f"The gradient's norm is {norm}, though every edge's loss is finite. (guards.nonfinite_gradient)",
            ),
            (
                ratio_error > s.ratio.limit,
                s.ratio.action,
                f"max |ratio - 1| is {ratio_error:.3g}, above {s.ratio.limit:g}. (guards.ratio) Lower the learning "
                "rate.",
            ),
            (
                approx_kl > s.kl.limit,
                s.kl.action,
                f"The approximate KL is {approx_kl:.3g}, above {s.kl.limit:g}. (guards.kl) Lower the learning rate.",
            ),
        ]
        allowed = True
        for broken, action, message in checks:
            if not broken:
                continue
            if action == "stop":
                raise GuardStop(f"{message} The run stops; its last checkpoint is intact.")
            self.report(f"{message}{' This update is skipped.' if action == 'skip' else ''}")
            allowed &= action == "warn"
        return allowed

    def watch_spread(self, zero_spread: int, groups: int) -> None:
        """Count iterations in which nearly all groups have equal rewards, and act when there are too many in a row."""
        s = self.settings.collapsed_spread
        self.flat_iterations = self.flat_iterations + 1 if zero_spread >= s.fraction * groups else 0
        if self.flat_iterations < s.patience:
            return
        message = (
            f"In {self.flat_iterations} iterations in a row at least {s.fraction:.0%} of the groups had equal rewards: "
            "nothing is left to learn from. (guards.collapsed_spread)"
        )
        if s.action == "stop":
            raise GuardStop(f"{message} The run stops; its last checkpoint is intact.")
        if self.flat_iterations == s.patience:
            self.report(message)

    def watch_learning(self, trained: int, skipped: int) -> None:
        """Count an iteration's updates, and say so when none of them trained anything.

        Args:
            trained: updates that were made, and had a gradient other than 0.
            skipped: updates that were left out.
        """
        self.learning.updates += trained
        self.learning.idle = 0 if trained else self.learning.idle + 1
        if self.learning.idle == 1:
            why = f"a guard left out {skipped} of its updates" if skipped else "its gradient is exactly 0"
            self.report(
                f"This iteration trained nothing: {why}. Usual causes: rewards that are equal within each prompt "
                "(groups/zero_spread), or too few scored samples (groups/dropped). (guards.nothing_trained)"
            )

    def check_learning(self) -> None:
        """Stop after too many iterations in a row that trained nothing; called when the last of them is written down.

        Raises:
            GuardStop: there were, and the action is stop.
        """
        s = self.settings.nothing_trained
        if s.action == "stop" and self.learning.idle >= s.patience:
            raise GuardStop(
                f"{self.learning.idle} iterations in a row trained nothing. (guards.nothing_trained) The run stops; "
                "its last checkpoint is intact. Look at the rewards, or raise guards.nothing_trained.patience."
            )

    @property
    def verdict(self) -> str | None:
        """Why a run that has reached its end is not well, whatever the action; None if it has trained something."""
        if self.learning.updates:
            return None
        return (
            "No update of this run had a gradient other than 0: nothing was trained. (guards.nothing_trained) Look at "
            "the rewards, credit and objective; log.txt and metrics.jsonl say more."
        )

    def check_failures(self, failed: int, samples: int) -> None:
        """Stop when scoring fails too often."""
        limit = self.settings.failed_samples.limit
        if failed > limit * samples:
            raise GuardStop(
                f"{failed} of {samples} samples could not be scored, above {limit:.0%}. (guards.failed_samples) "
                "Look at the reward's first error above, mend it, and go on with: diffrl train --resume RUN_DIR."
            )
