"""A pipeline behind its adapter without its weights: what only the two know can be asked before anything is loaded."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from diffrl.errors import ConfigError
from diffrl.models.architecture import NETWORKS
from diffrl.models.families import Family
from diffrl.models.loading import adapter_options, require_falling
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.published import Component, Pipeline, find_pipeline
from diffrl.registry import resolve


def dry_adapter(family: str, facts: Family, path: str, **options: Any) -> PipelineAdapter | None:
    """Return an adapter that knows its sizes and noise levels, and can neither encode, nor predict, nor decode.

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
    asked = adapter_options(adapter_class, path, options)
    try:
        known = find_pipeline(path)
        adapter: PipelineAdapter | None = None
        if known is not None:
            adapter = adapter_class(_assembled(known), torch.float32, **asked)
    except ConfigError:
        raise
    except Exception:  # what libraries raise for another's pipeline has no common class; loading tells
        return None
    if adapter is not None:
        require_falling(adapter, path)
    return adapter


def _loads_as_usual(adapter_class: Any) -> bool:
    """Return whether an adapter is made of a pipeline by `PipelineAdapter.from_pretrained`."""
    if not (isinstance(adapter_class, type) and issubclass(adapter_class, PipelineAdapter)):
        return False
    makers = [kind for kind in adapter_class.__mro__ if "from_pretrained" in vars(kind)]
    return makers[0] is PipelineAdapter


def _assembled(known: Pipeline) -> Any:
    """Return the pipeline of its networks and its decoder, None for all other parts."""
    parts = {name: one for name, one in known.components.items() if name in (*NETWORKS, "vae")}
    return known.assemble({name: _without_weights(name, one) for name, one in parts.items()})


def _without_weights(name: str, component: Component) -> Any:
    """Return a component: a network with its config and one empty parameter, any other as it is but for its tensors."""
    if name not in NETWORKS:
        with torch.device("meta"):
            return component.build()
    made = component.made
    network = made.__new__(made)
    nn.Module.__init__(network)
    signature = inspect.signature(made.__init__).parameters.values()
    defaults = {one.name: one.default for one in signature if one.default is not one.empty}
    network.register_to_config(**(defaults | component.config))
    network.register_parameter("nothing", nn.Parameter(torch.empty(0), requires_grad=False))
    return network
