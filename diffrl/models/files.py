"""Files of a pipeline that somebody else made: looked at before any library opens them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffrl.errors import ConfigError
from reward_models.messages import show
from reward_models.reading import Unreadable, parse_json, read_text, require_file

MOST_BYTES = 4_000_000
"""Of a JSON file of settings; the index of a network in hundreds of files has a tenth of it."""

PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl", ".pickle")
"""How files end that may run code when they are opened."""


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


def vet_pipeline(folder: Path) -> None:
    """Refuse a pipeline's folder whose files could hold up or take over the process that loads it.

    Raises:
        ConfigError: settings that cannot be read, a pipe or a device among the files, weights that only a pickle holds.
    """
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path for path in part.iterdir() if not path.is_dir())
        for file in files:
            _vet_file(file)
        pickles = [file for file in files if file.suffix.lower() in PICKLES and file.stem != "training_args"]
        if pickles and not any(file.suffix == ".safetensors" for file in files):
            raise ConfigError(
                f"{part} must hold its weights as safetensors. Got {pickles[0].name}, a pickle, which may run code of "
                "its maker when it is opened. Take a version with safetensors; or, if you trust its maker, load the "
                "pipeline with diffusers and write it anew with save_pretrained(FOLDER)."
            )


def _vet_file(file: Path) -> None:
    try:
        require_file(file)
    except Unreadable as error:
        raise ConfigError(f"{file} {error}. Remove it.") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}. Fetch it again.") from error
    if file.name.endswith("config.json"):
        read_object(file)
