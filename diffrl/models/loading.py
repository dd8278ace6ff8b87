"""From a family name and a path to a `ModelAdapter`, with the mistakes people make answered in one sentence."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from diffrl.errors import ConfigError
from diffrl.models.adapter import ModelAdapter
from diffrl.models.shipped import SETTINGS_FILE, shipped_settings
from diffrl.registry import MODELS, resolve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` means on this machine.

    Raises:
        ConfigError: CUDA was asked for by name and there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"A device is auto, cpu or cuda. Got {name!r}.")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("The device cuda needs a CUDA device. None was found. Use auto or cpu.")
    return torch.device(name)


def check_pipeline_directory(family: str, path: str, pipeline_class: str) -> None:
    """Refuse a local path that is no diffusers directory of the family's pipeline class; hub ids pass.

    Raises:
        ConfigError: says what was found instead.
    """
    directory = Path(path)
    if not directory.exists():
        looks_like_hub_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
        if looks_like_hub_id and not (directory.parent.is_dir() and directory.parent != Path()):
            return
        raise ConfigError(
            f"model.path must be a diffusers directory or a hub id. Got {path!r}, which does not exist here."
        )
    index = directory / "model_index.json"
    if not index.is_file():
        raise ConfigError(
            f"model.path must be a diffusers directory. Got {path!r}, which has no model_index.json. "
            "Point it at the folder that pipeline.save_pretrained wrote."
        )
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["_class_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{index} is not the index of a pipeline: {error}. Save the pipeline again.") from error
    if found != pipeline_class:
        raise ConfigError(
            f"model.family={family} needs a {pipeline_class}. Got {found} in {path!r}. "
            "Choose the family that fits the pipeline, or another path."
        )


def load_adapter(family: str, path: str, *, dtype: str, device: torch.device, **options: Any) -> ModelAdapter:
    """Load a pipeline's components as an adapter of its family.

    Args:
        family: registered family name or "module:Adapter".
        path: diffusers directory or hub id.
        dtype: name of the compute dtype, a key of `DTYPES`.
        device: where the components live.
        **options: passed to the adapter (height, width, max_sequence_length, revision); None leaves the choice to the
            pipeline's own `SETTINGS_FILE`, then to the adapter.

    Raises:
        ConfigError: wrong class, missing or unreadable files, an id that cannot be fetched.
    """
    adapter_class = resolve("model.family", MODELS, family)
    check_pipeline_directory(family, path, adapter_class.pipeline_class)
    given = {name: value for name, value in options.items() if value is not None}
    shipped = shipped_settings(Path(path))
    known = inspect.signature(adapter_class).parameters
    if unknown := sorted(shipped.keys() - known.keys()):
        raise ConfigError(
            f"{Path(path) / SETTINGS_FILE} may hold options of the adapter: {', '.join(known)}. Got "
            f"{', '.join(unknown)}. Remove them."
        )
    options = {**shipped, **given}
    try:
        adapter: ModelAdapter = adapter_class.from_pretrained(path, dtype=DTYPES[dtype], device=device, **options)
    except ConfigError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        if "out of memory" in str(error).lower() or "can't allocate" in str(error):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"model.path {path!r} could not be loaded: {reason.rstrip('.')}. Check it, or save it again."
        ) from error
    return adapter
