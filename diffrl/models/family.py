"""Facts of a model family, known before anything is loaded: configurations and plans read them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from diffrl.errors import ConfigError
from diffrl.functional.guidance import beside
from diffrl.models.text_encoders import TextEncoder

JOINT_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
ADDED_QKV = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
"""What the makers of many networks have as one layer."""

ENCODINGS_KEPT = 4 * 2**30
"""Bytes of prompts' encodings that a run keeps in the computer's memory; a plan counts them."""

MOST_OPTIONS: Mapping[str, int] = {"height": 16383, "width": 16383, "frames": 4096, "max_sequence_length": 1024}
"""The adapter options that cost memory, and how large they may be: in the configuration and in a pipeline's own
settings (`models.shipped`)."""


def comfyui_as_diffusers(layer: str) -> str:
    """Return ComfyUI's key where it finds a layer by diffusers' own name, parts of its fused layers too.

    Source: github.com/Comfy-Org/ComfyUI, comfy/lora.py (model_lora_keys_unet), comfy/utils.py (*_to_diffusers).
    """
    return f"transformer.{layer}"


UNMASKED = ("flash", "sage", "xformers")
"""Parts of the names of attention backends through which diffusers cannot mask: the first two take no masks, and to
xformers it hands them as numbers that are added, 1 and 0 (0.42)."""


@dataclass(frozen=True)
class Family:
    """Facts of a model family.

    Args:
        name: as in `model.family`.
        title: what people call it.
        adapter: "module:Adapter" that runs it.
        pipelines: diffusers pipeline classes that the adapter loads.
        media: what it draws.
        edits: whether every prompt comes with an image, which it edits or with which its video begins.
        empty_sees_source: whether the empty prompt's encoding depends on the image to edit, and is kept with each.
        guidance: classifier_free asks the network about the empty prompt too, which doubles the calls; embedded gives
            the scale to the network as a number.
        lora_targets: linear layers that get a LoRA if the configuration names none.
        exclude: linear layers that a low-precision copy leaves as they are; see `precision.layers.matches`.
        sol_rl_exclude: those that Sol-RL's code leaves as they are (NVlabs/Sana, configs/sol_rl): there by names and by
            a width that a layer must exceed, here by names alone. None = it has no list for the family.
        max_sequence_length: text tokens of a prompt that the stock pipeline takes by default.
        stock_options: arguments that a call of the stock pipeline needs to draw what diffrl draws.
        stock_lines: what is no argument of a call of the stock pipeline, by the name that diffrl has for it: a line to
            set it before the call, in which `pipeline` is the pipeline and {} the value; "" if nothing sets it.
        lora_loader: the class of `diffusers.loaders` that reads and writes its LoRAs, where the pipeline class is none.
        true_cfg_scale: of classifier-free guidance beside an embedded one (Kontext's `true_cfg_scale`), which asks the
            network about the empty prompt too where it is above 1; None where there is no such thing.
        negative_prompt: what classifier-free guidance leads away from where the configuration says nothing; None where
            the adapter encodes no `self.negative_prompt`, so that a configuration must say nothing.
        guidance_argument: what a call of the stock pipeline calls the guidance scale.
        guidance_offset: what a stock call's scale is more than the usual one, by which 1 means no guidance.
        masks_prompts: whether the network masks the padding of prompts, which some attention backends cannot.
        idle_weights: whether some of the network's weights feed nothing and so never get a gradient.
        fps: frames per second of the videos that it was trained on; None for pictures.
        distilled: words in a checkpoint's name that say that it was distilled to few steps.
        vae_dtype: what the picture decoder needs; None = what the pipeline computes in.
        comfyui: the key under which ComfyUI looks for the LoRA of a layer, from the layer's name in diffusers; it gives
            None for a layer that ComfyUI does not know. None: it does not load such models or such LoRAs by itself.
        original: the layers' names in the code of the network's makers, which kohya's scripts and ComfyUI keep: by the
            name of a list of blocks, diffusers' name for it and, by each layer's name in a block, the layers in
            diffusers that make it up, in the order of its rows. "": layers that are in no block.
        text_encoders: what reads its prompts, and how far.
        packages: that loading its pipeline needs beside those of diffrl.
    """

    name: str
    title: str
    adapter: str
    pipelines: tuple[str, ...]
    media: Literal["image", "video"] = "image"
    edits: bool = False
    empty_sees_source: bool = False
    guidance: Literal["classifier_free", "embedded"] = "classifier_free"
    lora_targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")
    exclude: tuple[str, ...] = ("proj_out",)
    sol_rl_exclude: tuple[str, ...] = ()
    max_sequence_length: int = 512
    stock_options: tuple[tuple[str, Any], ...] = ()
    stock_lines: tuple[tuple[str, str], ...] = ()
    lora_loader: str | None = None
    true_cfg_scale: float | None = None
    negative_prompt: str | None = None
    guidance_argument: str = "guidance_scale"
    guidance_offset: float = 0.0
    masks_prompts: bool = False
    idle_weights: bool = False
    fps: float | None = None
    distilled: tuple[str, ...] = ("turbo", "lightning", "hyper", "lcm", "dmd", "distill")
    vae_dtype: Literal["float32"] | None = None
    comfyui: Callable[[str], str | None] | None = None
    original: Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]] = field(default_factory=dict)
    text_encoders: tuple[TextEncoder, ...] = (TextEncoder("tokenizer", "text encoder"),)
    packages: tuple[str, ...] = ()

    def calls_per_step(self, guidance_scale: float) -> int:
        """Return network evaluations that one step of one sample takes."""
        scale = guidance_scale if self.guidance == "classifier_free" else beside(guidance_scale, self.true_cfg_scale)
        return 2 if scale > 1 else 1

    def without_negative_prompt(self) -> str | None:
        """Return why no negative prompt is read, in words that follow the family's name; None where one is."""
        if self.negative_prompt is None:
            return "whose adapter reads none"
        if self.guidance == "embedded" and (self.true_cfg_scale or 1.0) <= 1:
            return "whose guidance is a number that the network is given, where model.true_cfg_scale is null"
        return None

    def require_masks(self, attention: str | None) -> None:
        """Refuse an attention backend that would leave the padding of this family's prompts unmasked.

        Raises:
            ConfigError: names those that mask.
        """
        if self.masks_prompts and any(kind in (attention or "") for kind in UNMASKED):
            raise ConfigError(
                f"model.attention must be able to mask the padding of {self.name}'s prompts. Got {attention!r}. "
                "Choose native, _native_cudnn or _native_efficient."
            )

    def require_packages(self) -> None:
        """Refuse to load where a package is missing.

        Raises:
            ConfigError: says which, and how it is installed.
        """
        for name in self.packages:
            if importlib.util.find_spec(name) is None:
                raise ConfigError(
                    f"model.family {self.name} needs {name}, which is not installed. Run: pip install {name}"
                )
