"""A LoRA for ComfyUI, beside the one for diffusers: other keys, and each layer's alpha, because it reads no metadata.

ComfyUI adds alpha / rank * up @ down to a layer's weight, where `lora_B` is up and `lora_A` is down; to the rows of one
of its fused layers where diffusers' layer is a part of that. Source: github.com/Comfy-Org/ComfyUI, comfy/lora.py
(load_lora, calculate_weight), comfy/weight_adapter/lora.py. Other trainers' files have the same layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from diffrl.config import Config
from diffrl.errors import ConfigError
from diffrl.models.family import Family
from diffrl.models.lora import lora_layers
from diffrl.models.lora_file import FIRST_COMFYUI, SECOND_COMFYUI
from diffrl.run.checkpoints import AlignedModel


def require_comfyui(config: Config) -> None:
    """Refuse before anything is loaded what has no file for ComfyUI.

    Raises:
        ConfigError: ComfyUI has no such model.
    """
    if config.model.facts.comfyui is None:
        raise ConfigError(
            f"--comfyui needs a family that ComfyUI knows. Got {config.model.family} ({config.model.facts.title}), "
            "whose LoRA layers it does not find by their names. Leave --comfyui out."
        )


def comfyui_tensors(layers: Mapping[str, Tensor], alpha: float, family: Family) -> dict[str, Tensor]:
    """Return a LoRA's tensors by ComfyUI's keys, with an alpha () for each layer.

    Args:
        layers: `<layer>.lora_A.weight` (rank, in), `<layer>.lora_B.weight` (out, rank), layers named as in diffusers.
        alpha: the update is scaled by alpha / rank.
        family: one with `comfyui`.

    Raises:
        ConfigError: ComfyUI does not know a layer, and would go on without it.
    """
    tensors, unknown = dict[str, Tensor](), set[str]()
    for name, tensor in layers.items():
        layer, _, side = name.rpartition(".lora_")
        key = family.comfyui and family.comfyui(layer)
        if key is None:
            unknown.add(layer)
            continue
        tensors[f"{key}.lora_{side}"] = tensor.contiguous()
        tensors[f"{key}.alpha"] = torch.tensor(float(alpha))
    if unknown:
        raise ConfigError(
            f"--comfyui needs layers that ComfyUI knows. Got {', '.join(sorted(unknown)[:3])}, which it would leave "
            "out without an error. Leave --comfyui out, or train other model.lora.targets."
        )
    return tensors


def model_spec(model: AlignedModel) -> dict[str, str]:
    """Return what a model manager shows of the file, in the names of Stability's ModelSpec 1.0.

    Source: github.com/Stability-AI/ModelSpec. It asks for an architecture's name, which trainers make of the base's.
    """
    config = model.config
    base = Path(config.model.path).name
    rewards = ", ".join(reward.key for reward in config.rewards) or "given pairs"
    trained = f"{config.objective.kind} on {rewards}, {model.checkpoint.step} iterations of diffrl"
    return {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{re.sub(r'[^a-z0-9]+', '-', base.lower()).strip('-')}/lora",
        "modelspec.implementation": "https://github.com/comfyanonymous/ComfyUI",
        "modelspec.title": config.run.name,
        "modelspec.description": f"LoRA of {base}, aligned by reinforcement learning: {trained}.",
    }


def comfyui_files(model: AlignedModel) -> dict[str, dict[str, Tensor]]:
    """Return what `comfyui_tensors` has of each of a run's networks, by the file's name.

    Raises:
        ConfigError: ComfyUI does not know a layer.
    """
    lora, family = model.config.model.lora, model.config.model.facts
    assert lora is not None  # require_comfyui
    networks = model.adapter.trainable_modules().values()
    return {
        file: comfyui_tensors(lora_layers(network), lora.plain_alpha, family)
        for file, network in zip((FIRST_COMFYUI, SECOND_COMFYUI), networks, strict=False)
    }
