"""Settings that a pipeline brings along for diffrl; read without loading anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError

SETTINGS_FILE = "diffrl.json"
"""Beside a pipeline's model_index.json: adapter options that the pipeline was trained with, where they are not null in
the configuration, such as {"max_sequence_length": 1}."""


def shipped_settings(directory: Path) -> dict[str, Any]:
    """Adapter options that a local pipeline brings along; empty if it brings none.

    Raises:
        ConfigError: the file is not a JSON object.
    """
    path = directory / SETTINGS_FILE
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not readable JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must be a JSON object of adapter options. Got {settings!r}.")
    return settings
