"""Pipelines of any architecture with random weights and without text encoders, and encodings of their shapes.

Nothing is downloaded; on fake or meta tensors nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffrl.models.family import Family
from diffrl.models.pipeline import EMPTY, PipelineAdapter
from diffrl.models.placement import Placement
from diffrl.models.published import Component, Pipeline
from diffrl.registry import resolve


def random_adapter(
    family: str,
    facts: Family,
    pipeline: Pipeline,
    dtype: torch.dtype,
    device: torch.device,
    options: Mapping[str, Any],
    vae_dtype: torch.dtype | None = None,
    **changed: Any,
) -> PipelineAdapter:
    """Build a pipeline's transformer and decoder with random weights, behind its adapter, frozen.

    Args:
        family: registered family name or "module:Adapter".
        facts: of the family.
        pipeline: what it is made of.
        dtype: of the transformer.
        device: where it is built.
        options: of the adapter.
        vae_dtype: of the decoder; None = `dtype`.
        **changed: settings of its transformer that are not the pipeline's, as its number of layers.
    """
    network = pipeline.components["transformer"]
    network = replace(network, config={**network.config, **changed})
    parts = {}
    try:
        for name, part in (("transformer", network), ("vae", pipeline.components["vae"])):
            torch.set_default_dtype(vae_dtype or dtype if name == "vae" else dtype)
            with torch.device(device):
                parts[name] = part.build()
    finally:
        torch.set_default_dtype(torch.float32)
    adapter_class = resolve("model.family", {facts.name: facts.adapter}, family)
    adapter: PipelineAdapter = adapter_class(pipeline.assemble(parts), dtype=dtype, **options)
    return place_frozen(adapter, device)


def place_frozen(adapter: PipelineAdapter, device: torch.device) -> PipelineAdapter:
    """Freeze an adapter's transformer and decoder, and bring them to a device."""
    pipeline = adapter.pipeline
    for part in (pipeline.transformer, pipeline.vae):
        part.requires_grad_(False).eval()
    pipeline.set_progress_bar_config(disable=True)
    adapter.place(Placement(device=device))
    return adapter


def random_encodings(
    adapter: PipelineAdapter, device: torch.device, parts: Mapping[str, Component] | None = None
) -> dict[str, Tensor]:
    """Return random numbers in the shapes that an adapter's encoders give for one prompt, and for the empty one.

    Args:
        adapter: of the family.
        device: of the tensors.
        parts: of its pipeline, whose encoders may be smaller than the published ones.

    Raises:
        KeyError: the transformer's config does not say how wide encodings are.
    """
    encoders = {name: part.config for name, part in (parts or {}).items()}
    generator = torch.Generator(device).manual_seed(0)

    def sampled(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return {
            name: torch.ones(1, *shape, device=device, dtype=torch.bool)
            if name.endswith("mask")
            else torch.randn(1, *shape, generator=generator, device=device, dtype=adapter.dtype)
            for name, shape in shapes.items()
        }

    words = adapter.text_shapes(encoders)
    empty = words if adapter.family.guidance == "classifier_free" else {}
    return (
        sampled(words)
        | {EMPTY + name: row for name, row in sampled(empty).items()}
        | sampled(adapter.source_shapes(encoders))
    )
