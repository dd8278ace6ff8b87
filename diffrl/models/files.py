"""JSON files of a pipeline that somebody else made, read within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError
from reward_models.messages import show
from reward_models.text.reading import Unreadable, parse_json, read_text

MOST_BYTES = 4_000_000
"""Of a JSON file of settings; the index of a network in hundreds of files has a tenth of it."""


def read_object(path: Path, missing: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A JSON object.

    Args:
        path: of its file.
        missing: returned if there is no file.

    Raises:
        FileNotFoundError: there is none, and `missing` is None.
        ConfigError: it is too large, nested too deep or no object.
    """
    try:
        content = parse_json(read_text(path, MOST_BYTES))
    except FileNotFoundError:
        if missing is None:
            raise
        return missing
    except Unreadable as error:
        raise ConfigError(f"{path} {error}. Save the pipeline again, or fetch it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a JSON object. Got {show(content)}. Save the pipeline again.")
    return content
