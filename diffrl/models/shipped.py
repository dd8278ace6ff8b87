"""Settings that a pipeline brings along for diffrl; read without loading anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError
from diffrl.models.family import MOST_OPTIONS
from diffrl.models.files import read_object
from reward_models.common.messages import quote, show

SETTINGS_FILE = "diffrl.json"
"""Beside a pipeline's model_index.json: adapter options that the pipeline was trained with, where they are not null in
the configuration, such as {"max_sequence_length": 1}."""


def shipped_settings(directory: Path) -> dict[str, Any]:
    """Return adapter options that a local pipeline brings along; empty if it brings none.

    Raises:
        ConfigError: the file is not a JSON object, or an option is not what the configuration would take.
    """
    path = directory / SETTINGS_FILE
    settings = read_object(path, missing={})
    for name, value in settings.items():
        most = MOST_OPTIONS.get(name)
        if most is not None and value is not None and not (type(value) is int and 1 <= value <= most):
            raise ConfigError(
                f"{quote(name)} of {path} must be a whole number >= 1 and <= {most}. Got {show(value)}. Mend the file, "
                "or remove the key."
            )
    return dict(settings)
