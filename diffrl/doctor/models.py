"""Published architectures with random weights, in memory or as a folder, and tiny pipelines: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from diffrl.models.families import FAMILIES
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.published import Component, Pipeline, published_pipeline
from diffrl.models.random_weights import place_frozen, random_adapter, random_encodings
from diffrl.models.tiny import build_pipeline, tiny_settings
from diffrl.registry import resolve

__all__ = ["CASES", "Case", "full_adapter", "random_encodings", "tiny_adapter", "write_random_pipeline"]


@dataclass(frozen=True)
class Case:
    """A model and how it is drawn from."""

    family: str  # of the model
    path: str  # its name on the hub
    size: Mapping[str, int] = field(default_factory=dict)  # options of the adapter
    steps: int = 10  # of a sample
    guidance_scale: float = 4.5  # of a sample
    samples: int = 16  # in one network call
    edges: int = 4  # trained steps in one backward pass


SQUARE = {"height": 512, "width": 512}
CASES = {
    "flux": Case("flux", "black-forest-labs/FLUX.1-dev", SQUARE, guidance_scale=3.5, samples=8, edges=2),
    "sd3": Case("sd3", "stabilityai/stable-diffusion-3.5-large", SQUARE, samples=8, edges=2),
    "sana": Case("sana", "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers", {"height": 1024, "width": 1024}),
    "wan": Case("wan", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", {"height": 240, "width": 416, "frames": 33}, 20, samples=4),
}
"""Those whose speed is measured."""
MEDIUM = Case("sd3", "stabilityai/stable-diffusion-3.5-medium", SQUARE, samples=8, edges=2)


def full_adapter(case: Case, device: torch.device, **changed: Any) -> Any:
    """Return a published model with random bfloat16 weights, without its text encoders."""
    facts = FAMILIES[case.family]
    return random_adapter(facts.adapter, facts, _published(case.path), torch.bfloat16, device, case.size, **changed)


def _published(path: str) -> Pipeline:
    known = published_pipeline(path)
    if known is None:
        raise LookupError(f"assets/published has no pipeline {path}")
    return known


def tiny_adapter(case: Case, words: list[str]) -> tuple[PipelineAdapter, Case]:
    """Return the family's tiny pipeline in float32 on the CPU, and its case."""
    pipeline = build_pipeline(case.family, words, seed=0)
    options = tiny_settings(pipeline)
    small = Case(case.family, "tiny", options, steps=5, guidance_scale=case.guidance_scale, samples=4, edges=2)
    adapter_class = resolve("model.family", {}, FAMILIES[case.family].adapter)
    return place_frozen(adapter_class(pipeline, dtype=torch.float32, **options), torch.device("cpu")), small


SHORTER = {"num_hidden_layers": 1, "num_layers": 1}
"""What text encoders of a random pipeline have instead of their layers: what they say is noise anyway."""


def write_random_pipeline(
    path: str, family: str, folder: Path, words: list[str], device: torch.device | str = "cpu", **changed: Any
) -> Path:
    """Write a published pipeline with random bfloat16 weights in shards, its text encoders of one layer.

    Tokenizers are those of the family's tiny pipeline, so that prompts of `words` can be read.

    Args:
        path: its name on the hub.
        family: that loads it.
        folder: to write.
        words: of prompts.
        device: where weights are made: a GPU makes 12 billion in a second, a CPU in minutes.
        **changed: settings of its transformer that are not the published ones.
    """
    published, tiny = _published(path), build_pipeline(family, words, seed=0)
    parts: dict[str, Any] = {}
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(0)
            for name, component in published.components.items():
                changes = changed if name.startswith("transformer") else {}
                parts[name] = _shorter(name, component, tiny, changes).build()
    finally:
        torch.set_default_dtype(torch.float32)
    others = {name: part for name, part in tiny.components.items() if name not in parts and name != "scheduler"}
    pipeline = published.assemble({**others, **parts})
    pipeline.save_pretrained(folder, max_shard_size="1GB")
    return folder


def _shorter(name: str, component: Component, tiny: Any, changed: Mapping[str, Any]) -> Component:
    """Change a component by `changed`; a text encoder to one layer, and the ids of its tiny tokenizer."""
    if not name.startswith("text_encoder"):
        return replace(component, config={**component.config, **changed})
    tokenizer = getattr(tiny, name.replace("text_encoder", "tokenizer"))
    tokenizer.model_max_length = component.config.get(
        "max_position_embeddings", 77 if "CLIP" in component.name else 512
    )
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    known = {one: getattr(tokenizer, one) for one in ids if getattr(tokenizer, one, None) is not None}
    shorter = {one: count for one, count in SHORTER.items() if one in component.config}
    return replace(component, config={**component.config, **shorter, **known})
