"""The one exception that reward models raise for a mistake the user can mend."""

from __future__ import annotations

from reward_models.messages import cut

LONGEST_MESSAGE = 4000
"""Characters of one problem: whatever is quoted in it, it can be read."""


class RewardError(Exception):
    """A scorer cannot be found, loaded or applied; the message names the rule, what was received and the way out."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(cut(str(message), LONGEST_MESSAGE))
