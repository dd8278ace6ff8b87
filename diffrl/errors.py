"""Errors meant for the user. Each message names the rule, what was received and the way out.

The command line prints the message alone, without a traceback, and exits with the class's `exit_code`.
"""

from __future__ import annotations

from collections.abc import Sequence

from reward_models.common.errors import LONGEST_MESSAGE
from reward_models.common.messages import cut


class DiffrlError(Exception):
    """Something the user can mend: bad input, a missing file, a run that cannot go on."""

    exit_code = 2


class ConfigError(DiffrlError):
    """One or more problems in a configuration, all reported at once."""

    def __init__(self, problems: str | Sequence[str], source: str | None = None):
        texts = [problems] if isinstance(problems, str) else problems
        self.problems = [cut(problem, LONGEST_MESSAGE) for problem in texts]
        where = f" in {source}" if source else ""
        if len(self.problems) == 1:
            text = f"{source}: {self.problems[0]}" if source else self.problems[0]
        else:
            text = f"{len(self.problems)} problems{where}:\n" + "\n".join(f"  - {p}" for p in self.problems)
        super().__init__(text)


class SourceError(ConfigError):
    """An image that a prompt asks to edit, or names in a pair, cannot be read, or not any more."""


class ExplorerError(ConfigError):
    """A process elsewhere that is to draw samples refuses, or would draw others."""


class NotHereError(ConfigError):
    """Nothing is wrong with the configuration, but this machine cannot run it."""


class CheckpointError(DiffrlError):
    """A checkpoint is missing, torn or does not belong to this run."""


class GuardStop(DiffrlError):  # noqa: N818 - what happened, not what is wrong with the input
    """A guard ended the run because going on would have been wrong; what was saved stays."""

    exit_code = 3


class ExplorersGone(GuardStop):
    """No process elsewhere has drawn what it was asked for, in all the time that there was."""
