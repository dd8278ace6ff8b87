"""Pipelines of any architecture with random weights and without text encoders, and encodings of their shapes.

Nothing is downloaded; on fake or meta tensors nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffrl.models.families.hunyuan_video import GLYPH_TOKENS
from diffrl.models.family import Family
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.placement import Placement
from diffrl.models.published import Component, Pipeline
from diffrl.registry import resolve

CLIP_TOKENS = 77


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
    adapter: Any, family: str, device: torch.device, parts: Mapping[str, Component] | None = None
) -> dict[str, Tensor]:
    """Return random numbers in the shapes that a family's encoders give for one prompt, and for the empty one.

    Args:
        adapter: of the family.
        family: its name.
        device: of the tensors.
        parts: of its pipeline, whose encoders may be smaller than the published ones.

    Raises:
        KeyError: the transformer's config does not say how wide encodings are.
    """
    known = {name: part.config for name, part in (parts or {}).items()}
    if family == "wan_i2v":
        return _random_first_frame(adapter, device, known.get("image_encoder", {}))
    config, length = adapter.transformer.config, adapter.max_sequence_length
    widths = {"sana": "caption_channels", "wan": "text_dim", "z_image": "cap_feat_dim"}
    widths["hunyuan_video"] = "text_embed_dim"
    width, clip = config[widths.get(family, "joint_attention_dim")], 0
    if family == "sd3":
        clip = known.get("text_encoder", {}).get("max_position_embeddings", CLIP_TOKENS)
    shapes = {"prompt_embeds": (1, length + clip, width)}
    if family in ("sd3", "flux", "flux_kontext"):
        shapes["pooled"] = (1, config["pooled_projection_dim"])
    if family == "hunyuan_video":
        shapes["glyph_embeds"] = (1, GLYPH_TOKENS, config["text_embed_2_dim"])
    if family in ("flux_kontext", "qwen_image_edit"):
        shapes["source"] = (1, adapter.tokens, config["in_channels"])
    generator = torch.Generator(device).manual_seed(0)
    encodings = {n: torch.randn(s, generator=generator, device=device, dtype=adapter.dtype) for n, s in shapes.items()}
    if family in ("sana", "qwen_image", "qwen_image_edit", "z_image", "hunyuan_video"):
        encodings["mask"] = torch.ones(
            (1, length), device=device, dtype=torch.int64 if family == "sana" else torch.bool
        )
    if family == "hunyuan_video":
        encodings["glyph_mask"] = torch.ones((1, GLYPH_TOKENS), device=device, dtype=torch.bool)
    if family in ("flux", "flux_kontext"):
        return encodings
    return encodings | {f"negative_{name}": tensor.clone() for name, tensor in encodings.items() if name != "source"}


def _random_first_frame(adapter: Any, device: torch.device, encoder: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the same of Wan's image to video: words, a first frame, CLIP's tokens if the network takes them."""
    config, words = adapter.transformer.config, (1, adapter.max_sequence_length, adapter.transformer.config.text_dim)
    shapes = {"prompt_embeds": words, "negative_prompt_embeds": words, "first_frame": (1, *adapter.latent_shape)}
    if config.image_dim is not None:
        patches = encoder.get("image_size", 224) // encoder.get("patch_size", 14)
        shapes["image_embeds"] = (1, patches**2 + 1, config.image_dim)
    generator = torch.Generator(device).manual_seed(0)
    return {n: torch.randn(s, generator=generator, device=device, dtype=adapter.dtype) for n, s in shapes.items()}
