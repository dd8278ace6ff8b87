"""Values of options and recipes, read as the training configurations are."""

from __future__ import annotations

from typing import Any

import yaml

from reward_models.errors import RewardError
from reward_models.yaml12 import Loader


def read_yaml(text: str, where: str) -> Any:
    """Values, lists and mappings of a YAML text.

    Raises:
        RewardError: it is none.
    """
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        told = " ".join(str(error).split())
        raise RewardError(f"{where} cannot be read as YAML: {told}.") from error
