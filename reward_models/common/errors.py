"""The exceptions that reward models raise for a mistake the user can mend."""

from __future__ import annotations

from reward_models.common.messages import printable

LONGEST_MESSAGE = 4000
"""Characters of one problem: whatever is quoted in it, it can be read."""


class RewardError(Exception):
    """A scorer cannot be found, loaded or applied; the message names the rule, what was received and the way out."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, LONGEST_MESSAGE))


class BrokenScorerError(RewardError):
    """A scorer broke its contract: it raised what it should not, returned what is no output, or changed its batch."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, as torch, the C library or Python word it."""
    words = ("out of memory", "can't allocate", "cannot allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)
