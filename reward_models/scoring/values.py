"""Values of options and recipes, read as the training configurations are."""

from __future__ import annotations

from typing import Any

from reward_models.common.errors import RewardError
from reward_models.common.messages import cut
from reward_models.common.reading import Unreadable
from reward_models.common.yaml12 import load_yaml


def read_yaml(text: str, where: str) -> Any:
    """Values, lists and mappings of a YAML text.

    Raises:
        RewardError: it is none.
    """
    try:
        return load_yaml(text)
    except Unreadable as error:
        raise RewardError(f"{cut(where, 200)} cannot be read as YAML: {error}.") from error
