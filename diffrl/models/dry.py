"""A pipeline behind its adapter without its weights: what only the two know can be asked before anything is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffrl.bundled import pipeline_folder
from diffrl.errors import ConfigError
from diffrl.models.architecture import NETWORKS
from diffrl.models.families import Family
from diffrl.models.files import read_object
from diffrl.models.loading import adapter_options, require_falling
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.published import PUBLISHED
from diffrl.registry import resolve

Part = tuple[type, Mapping[str, Any]]
"""A component's class and its config."""


def dry_adapter(family: str, facts: Family, path: str, **options: Any) -> PipelineAdapter | None:
    """An adapter that knows its sizes and noise levels, and can neither encode, nor predict, nor decode.

    Networks have their configs alone, autoencoders are on the meta device, text encoders and tokenizers are left out.
    The pipeline and the adapter are made by the constructors that loading calls, so they refuse what loading refuses.

    Args:
        family: registered family name or "module:Adapter".
        facts: of the family.
        path: of a pipeline's folder, or a published one's name on the hub.
        **options: as for `load_adapter`.

    Returns:
        None if the pipeline is neither here nor known, or can be made in another way alone.

    Raises:
        ConfigError: the adapter refuses an option, or the pipeline's scheduler.
    """
    adapter_class = resolve("model.family", {facts.name: facts.adapter}, family)
    if not _loads_as_usual(adapter_class):
        return None
    facts.require_packages()
    folder = pipeline_folder(path)
    asked = adapter_options(adapter_class, path, options)
    try:
        pipeline = _local(folder) if folder.is_dir() else _published(path) if path in PUBLISHED else None
        adapter: PipelineAdapter | None = None if pipeline is None else adapter_class(pipeline, torch.float32, **asked)
    except ConfigError:
        raise
    except Exception:  # what libraries raise for another's pipeline has no common class; loading tells
        return None
    if adapter is not None:
        require_falling(adapter, path)
    return adapter


def _loads_as_usual(adapter_class: Any) -> bool:
    """Whether an adapter is made of a pipeline by `PipelineAdapter.from_pretrained`."""
    if not (isinstance(adapter_class, type) and issubclass(adapter_class, PipelineAdapter)):
        return False
    makers = [kind for kind in adapter_class.__mro__ if "from_pretrained" in vars(kind)]
    return makers[0] is PipelineAdapter


def _local(folder: Path) -> Any:
    """The pipeline of a folder."""
    import diffusers

    index = read_object(folder / "model_index.json")
    parts: dict[str, Part] = {}
    for name in (*NETWORKS, "vae", "scheduler"):
        if isinstance(named := index.get(name), list) and named[-1] is not None:
            file = folder / name / ("scheduler_config.json" if name == "scheduler" else "config.json")
            parts[name] = getattr(diffusers, named[-1]), read_object(file)
    return _made(getattr(diffusers, index["_class_name"]), parts, index)


def _published(path: str) -> Any:
    """A pipeline that is known by its name."""
    import diffusers

    known = PUBLISHED[path]
    components = {**known.components, "scheduler": known.scheduler}
    parts = {name: (getattr(diffusers, one.name), one.config) for name, one in components.items() if _ours(name)}
    return _made(getattr(diffusers, known.pipeline), parts, known.options)


def _ours(name: str) -> bool:
    return name in (*NETWORKS, "vae", "scheduler")


def _made(pipeline: Any, parts: Mapping[str, Part], options: Mapping[str, Any]) -> Any:
    """A pipeline of its parts, None for all others, and the options that it has."""
    components: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(pipeline.__init__).parameters.items())[1:]:
        if name in parts:
            components[name] = _without_weights(name, *parts[name])
        elif isinstance(options.get(name), (bool, int, float, str)):
            components[name] = options[name]
        elif parameter.default is parameter.empty:
            components[name] = None
    return pipeline(**components)


def _without_weights(name: str, made: Any, config: Mapping[str, Any]) -> Any:
    """A component: a network with its config and one empty parameter, any other as it is but for its tensors."""
    if name == "scheduler":
        return made.from_config(dict(config))
    if name not in NETWORKS:
        with torch.device("meta"):
            return made.from_config(dict(config))
    network = made.__new__(made)
    nn.Module.__init__(network)
    signature = inspect.signature(made.__init__).parameters.values()
    defaults = {one.name: one.default for one in signature if one.default is not one.empty}
    network.register_to_config(**{**defaults, **config})
    network.register_parameter("nothing", nn.Parameter(torch.empty(0), requires_grad=False))
    return network
