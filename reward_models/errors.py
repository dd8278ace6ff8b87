"""The one exception that reward models raise for a mistake the user can mend."""


class RewardError(Exception):
    """A scorer cannot be found, loaded or applied; the message names the rule, what was received and the way out."""

    exit_code = 2
