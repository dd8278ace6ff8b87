"""From a family name and a path to a `ModelAdapter`, with the mistakes people make answered in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from diffrl.bundled import pipeline_folder
from diffrl.errors import ConfigError, NotHereError
from diffrl.models.adapter import ModelAdapter
from diffrl.models.families import FAMILIES, Family, find_family, require_pipeline
from diffrl.models.hub import fetch, is_here, loading_problem, pipeline_class_of
from diffrl.models.placement import Placement
from diffrl.models.published import published_pipeline
from diffrl.models.shipped import SETTINGS_FILE, shipped_settings
from diffrl.models.vetting import vet_pipeline
from diffrl.registry import resolve
from reward_models.common.errors import is_out_of_memory
from reward_models.common.messages import describe, show

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """Return the device that `auto`, `cpu` or `cuda` means on this machine.

    Raises:
        NotHereError: CUDA was asked for by name and there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"A device is auto, cpu or cuda. Got {name!r}.")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise NotHereError("The device cuda needs a CUDA device. None was found. Use auto or cpu.")
    return torch.device(name)


def check_pipeline_directory(family: Family, path: str, variant: str | None = None) -> None:
    """Refuse a path that is no diffusers directory of one of the family's pipeline classes.

    A name on the hub passes if its class is the family's, or not known here.

    Raises:
        ConfigError: says what was found instead.
    """
    if not is_here(path):
        known = published_pipeline(path)
        if known is not None:
            require_pipeline(family, known.name, path)
        return
    directory = pipeline_folder(path)
    index = directory / "model_index.json"
    if not index.is_file():
        raise ConfigError(
            f"model.path must be a diffusers directory. Got {path!r}, which has no model_index.json. "
            "Point it at the folder that pipeline.save_pretrained wrote."
        )
    require_pipeline(family, pipeline_class_of(path), path)
    vet_pipeline(directory, variant)


def infer_family(path: str) -> str:
    """Return the family whose adapter loads this pipeline.

    Raises:
        ConfigError: the path cannot be read, or no family of this version loads it.
    """
    try:
        class_name = pipeline_class_of(path)
    except (OSError, ValueError, AttributeError) as error:
        if is_here(path):
            check_pipeline_directory(FAMILIES["sd3"], path)  # says so if it is no folder of a pipeline
        raise ConfigError(loading_problem(path, error)) from error
    for family in FAMILIES.values():
        if class_name in family.pipelines:
            return family.name
    known = "; ".join(f"{family.name}: {', '.join(family.pipelines)}" for family in FAMILIES.values())
    raise ConfigError(
        f"{path!r} must be a pipeline that a family of this version loads ({known}). Got a {class_name}. "
        "docs/add-a-model.md tells how to add a family."
    )


def load_adapter(
    family: str,
    path: str,
    *,
    dtype: str,
    device: torch.device | None = None,
    placement: Placement | None = None,
    revision: str | None = None,
    variant: str | None = None,
    negative_prompt: str | None = None,
    **options: Any,
) -> ModelAdapter:
    """Load a pipeline's components as an adapter of its family.

    Args:
        family: registered family name or "module:Adapter".
        path: diffusers directory or hub id.
        dtype: name of the compute dtype, a key of `DTYPES`.
        device: where the components live, if no placement says it.
        placement: where they live and how they are run.
        revision: branch, tag or commit on the hub.
        variant: of the files of weights, such as fp16; parts without it are loaded from their plain files.
        negative_prompt: what classifier-free guidance leads away from; None = the family's, mostly the empty one.
        **options: passed to the adapter (height, width, max_sequence_length, ...); None leaves the choice to the
            pipeline's own `SETTINGS_FILE`, then to the adapter.

    Raises:
        ConfigError: wrong class, missing or unreadable files, an id that cannot be fetched, a negative prompt for an
            adapter that takes none.
    """
    facts = find_family(family)
    adapter_class = resolve("model.family", {facts.name: facts.adapter}, family)
    check_pipeline_directory(facts, path, variant)
    placement = placement or Placement(device=device or torch.device("cpu"))
    asked = adapter_options(adapter_class, path, options)
    if variant is not None:
        asked["variant"] = variant  # adapters of others that load in their own way know of none
    try:
        folder = _vetted_folder(facts, path, revision, variant)
        adapter: ModelAdapter = adapter_class.from_pretrained(folder, dtype=DTYPES[dtype], placement=placement, **asked)
    except ConfigError:
        raise
    except Exception as error:  # what libraries raise for somebody's damaged files has no common class
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        raise ConfigError(loading_problem(path, error)) from error
    require_falling(adapter, path)
    if negative_prompt is not None:
        if not hasattr(adapter, "negative_prompt"):
            raise ConfigError(
                f"model.negative_prompt needs an adapter with an attribute of this name. {family} has none. Remove it."
            )
        adapter.negative_prompt = negative_prompt
    return adapter


def adapter_options(adapter_class: Any, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adapter's options: those of the caller, else those that a pipeline's folder brings along.

    Raises:
        ConfigError: the folder brings options that the adapter does not have.
    """
    named = {name: value for name, value in options.items() if value is not None}
    shipped = shipped_settings(pipeline_folder(path))
    known = adapter_class.options()
    if unknown := sorted(shipped.keys() - set(known)):
        raise ConfigError(
            f"{pipeline_folder(path) / SETTINGS_FILE} may hold options of the adapter: {', '.join(known)}. Got "
            f"{show(unknown)}. Remove them."
        )
    return {**shipped, **named}


def _vetted_folder(family: Family, path: str, revision: str | None, variant: str | None) -> Path:
    """Return the folder of a pipeline, its files vetted; one on the hub is fetched if it is of this family."""
    if pipeline_folder(path).is_dir():
        return pipeline_folder(path)  # looked at by `check_pipeline_directory`
    require_pipeline(family, pipeline_class_of(path, revision), path)
    folder = fetch(path, revision, variant)
    vet_pipeline(folder, variant)
    return folder


def require_falling(adapter: ModelAdapter, path: str) -> None:
    """Refuse a scheduler without noise levels, or whose levels do not fall: steps without length have no density."""
    try:
        sigmas = adapter.sigmas(4)
    except Exception as error:  # schedulers of other kinds of models lack one thing or another
        raise ConfigError(
            f"The scheduler of {path!r} must be one of flow matching, with noise levels. It raised "
            f"{describe(error)}. Name another in model_index.json."
        ) from error
    if not bool(torch.isfinite(sigmas).all() and (sigmas.diff() < 0).all() and sigmas[-1] >= 0):
        raise ConfigError(
            f"The scheduler of {path!r} must give noise levels that fall from 1 to 0. Got {show(sigmas.tolist())}. "
            "Mend scheduler/scheduler_config.json, such as its shift."
        )
