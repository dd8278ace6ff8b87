"""What came of trials: how they are judged, counted and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

FAULTS = (
    "traceback",
    "hang",
    "died",
    "no sentence",
    "flood",
    "trained nothing",
    "lost",
    "differs",
    "memory",
    "answer",
    "attack",
)
"""Outcomes that must not be. Any other is fine and only counted.

traceback: an error that is no sentence. hang: over the limit. died: by a signal, or by an exit code that is nobody's.
no sentence: ended with 2 or 3 and said nothing. flood: said more than a screen can hold. trained nothing: exit code 0
and not one weight moved. lost: something that was there before is gone. differs: exit code 0 and other numbers than
without the damage. memory: far more than the plan said, or never given back. answer: an answer that must not be.
attack: the fuzzer itself failed.
"""
FLOOD = 20_000
"""Characters that a refusal may have."""


@dataclass(frozen=True)
class Finding:
    """What came of one mutant.

    Args:
        subject: what was attacked.
        seed: of the attack.
        index: of the mutant; with the seed it makes the mutant again.
        outcome: one of `FAULTS`, or a word of the subject's own.
        mutant: what was done, in one line.
        detail: what was seen.
        seconds: that it took.
    """

    subject: str
    seed: int
    index: int
    outcome: str
    mutant: str = ""
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def failed(self) -> bool:
        """Whether it must not be."""
        return self.outcome in FAULTS


def table(findings: Sequence[Finding]) -> str:
    """Counts by subject and outcome, one line each; the faults are shown even where there are none."""
    lines = []
    for subject in dict.fromkeys(finding.subject for finding in findings):
        own = [finding for finding in findings if finding.subject == subject]
        counts = Counter(finding.outcome for finding in own)
        fine = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if name not in FAULTS)
        bad = ", ".join(f"{name} {counts[name]}" for name in FAULTS if counts[name]) or "0 faults"
        longest = max(finding.seconds for finding in own)
        lines.append(f"{subject}: tried {len(own)}: {fine or 'none fine'}; {bad}. The longest took {longest:.1f} s.")
    return "\n".join(lines)


def failures(findings: Sequence[Finding]) -> str:
    """Every fault, with what repeats it."""
    return "\n".join(
        f"\n[{finding.outcome}] {finding.mutant}\n"
        f"  again: python -m tests.attacks.fuzz {finding.subject} --replay {finding.seed}:{finding.index}\n"
        + "\n".join(f"  | {line[:300]}" for line in finding.detail.strip().splitlines()[-25:])
        for finding in findings
        if finding.failed
    )
