"""Memory of a run, estimated from a pipeline's config files and safetensors headers, before anything is loaded.

An estimate, within a factor of two at best: it leaves out the scorers and fragmentation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffrl.config.credit import NftSettings
from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from diffrl.models.shipped import shipped_settings
from diffrl.models.targets import names_layer
from diffrl.rollout.counts import calls_per_step

BYTES = {"float32": 4, "bfloat16": 2}
FLOAT32 = 4
ADAM_STATE_BYTES = {"adamw": 8, "adamw_8bit": 2}
ELEMENTS_PER_TOKEN_AND_LAYER = 21
"""Numbers that a transformer layer keeps for backward, in multiples of its width: what autograd saved in diffusers'
SD3 transformer with fused attention (20.9 at widths 128 and 256)."""
LIBRARIES = 2**30
"""What torch, diffusers and transformers hold once imported: 1.0 GiB resident, measured on a CPU with torch 2.15."""

DECODER_MAPS = 6
"""Full-resolution maps of the decoder alive at once, in multiples of its last block's channels; not measured."""

Shapes = Mapping[str, tuple[int, ...]]

WEIGHTS = re.compile(r"(diffusion_pytorch_model|model)(-\d+-of-\d+)?\.safetensors")
"""A component's weights as diffusers and transformers name them; variants such as *.fp16.safetensors are copies."""

BUFFERS = ("pos_embed.pos_embed",)
"""Tensors of a transformer's file that are no parameters: SD3's fixed position table, tens of millions of numbers."""

DEFAULT_CLIP_TOKENS = 77
DEFAULT_T5_TOKENS = 256


@dataclass(frozen=True)
class Memory:
    """Estimated bytes of one process.

    Args:
        trained_parameters: that the optimiser updates.
        frozen_parameters: all others, by component of the pipeline.
        kept: bytes held throughout, by purpose.
        passing: bytes of activations, by stage; one stage runs at a time.
    """

    trained_parameters: int
    frozen_parameters: Mapping[str, int]
    kept: Mapping[str, int]
    passing: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Everything held, and the largest stage."""
        return sum(self.kept.values()) + max(self.passing.values(), default=0)


def estimate_memory(config: Config, samples: int, edges: int) -> tuple[Memory | None, tuple[str, ...]]:
    """Estimated memory of one process, from the pipeline's file headers alone.

    Trained weights, gradients, optimiser state and moving average are float32; everything else has model.dtype. A full
    fine-tune with kl > 0 keeps a reference copy; with LoRA the reference is the network without its adapters.

    Args:
        config: the run.
        samples: pictures of an iteration on this process.
        edges: trained steps of an iteration on this process.

    Returns:
        The estimate, or None, and notes on what is missing.
    """
    path = Path(config.model.path)
    shapes = component_shapes(path)
    if "transformer" not in shapes:
        return None, (f"No memory estimate: {path} is no folder here with a transformer's safetensors files.",)
    counts = {name: count_parameters(tensors) for name, tensors in shapes.items()}
    tables = sum(math.prod(shape) for name, shape in shapes["transformer"].items() if name in BUFFERS)
    network, lora, dtype = counts.pop("transformer"), config.model.lora, BYTES[config.model.dtype]
    trained = network if lora is None else lora_parameters(shapes["transformer"], lora.targets, lora.rank)
    kept = {
        "libraries": LIBRARIES,
        "policy weights": FLOAT32 * trained + (0 if lora is None else dtype * network),
        "gradients": FLOAT32 * trained,
        "optimiser": ADAM_STATE_BYTES[config.train.optimizer] * trained,
        "moving average": FLOAT32 * trained if config.train.ema is not None else 0,
        "reference": dtype * network if config.objective.kl > 0 and lora is None else 0,
        "frozen components": dtype * (sum(counts.values()) + tables),
    }
    e, o = config.rollout.explore, config.objective
    if e is not None and e.precision != "training":
        kept["exploring copy"] = network * (2 if e.precision == "bfloat16" else FLOAT32)
    if isinstance(o, NftSettings) and o.old_limit > 0:
        kept["old policy"] = 2 * FLOAT32 * trained  # its weights, and the live ones while it draws
    frozen = dict(counts) if lora is None else {"transformer": network, **counts}
    length = config.model.max_sequence_length
    if length is None:
        length = shipped_settings(path).get("max_sequence_length")
    geometry = read_geometry(path, config.model.height, config.model.width, length)
    if geometry is None:
        return Memory(trained, frozen, kept, {}), (
            "Memory without activations: the pipeline's config files are unread.",
        )
    kept["samples and steps"] = edges * 2 * FLOAT32 * geometry.latent_elements + samples * 3 * geometry.pixels
    if e is not None:
        candidates = samples * e.candidates // (e.keep + e.audit)
        kept["candidates"] = candidates * (FLOAT32 * geometry.latent_elements + 3 * geometry.pixels)
    if isinstance(o, NftSettings):
        kept["noised examples"] = samples * o.levels * 3 * FLOAT32 * geometry.latent_elements
    layer = geometry.tokens * geometry.width * ELEMENTS_PER_TOKEN_AND_LAYER * dtype
    whole = layer * geometry.layers
    if config.train.gradient_checkpointing:
        whole = layer + geometry.tokens * geometry.width * geometry.layers * dtype
    guided = calls_per_step(config.rollout.guidance_scale)
    eval_guided = calls_per_step(config.eval.guidance_scale)
    passing = {
        "rollout": config.rollout.micro_batch * guided * layer,
        "update": config.train.micro_batch * guided * whole,
        "evaluation": config.eval.batch * eval_guided * layer,
        "decode": config.rollout.decode_batch * geometry.pixels * geometry.decoder_channels * DECODER_MAPS * dtype,
    }
    return Memory(trained, frozen, kept, passing), ()


@dataclass(frozen=True)
class Geometry:
    """Sizes that activations depend on.

    Args:
        latent_elements: numbers in one sample's latents.
        pixels: of one picture.
        tokens: of picture and text that the transformer attends over.
        width: of the transformer, in numbers a token.
        layers: of the transformer.
        decoder_channels: of the picture decoder at full resolution.
    """

    latent_elements: int
    pixels: int
    tokens: int
    width: int
    layers: int
    decoder_channels: int


def header_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a safetensors file, from its header.

    Raises:
        ConfigError: the file is torn or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= path.stat().st_size - 8:
                raise ValueError(f"the header cannot have {length} bytes")
            header = json.loads(file.read(length))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} must be a safetensors file. Its header is unreadable: {error}. Fetch it again."
        ) from error


def component_shapes(pipeline: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """Tensor shapes of each component of a pipeline's folder; empty if there is no such folder."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for file in sorted(pipeline.glob("*/*.safetensors")):
        if WEIGHTS.fullmatch(file.name):
            found.setdefault(file.parent.name, {}).update(header_shapes(file))
    return found


def count_parameters(shapes: Shapes) -> int:
    """Numbers in all tensors that are parameters."""
    return sum(math.prod(shape) for name, shape in shapes.items() if name not in BUFFERS)


def lora_parameters(shapes: Shapes, targets: Sequence[str], rank: int) -> int:
    """Parameters of adapters of this rank on the linear layers whose names end in a target, as peft matches them."""
    total = 0
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        if layer == name or len(shape) != 2:
            continue
        if any(names_layer(target, layer) for target in targets):
            total += rank * sum(shape)
    return total


def read_geometry(pipeline: Path, height: int | None, width: int | None, t5_tokens: int | None) -> Geometry | None:
    """Sizes of an SD3 pipeline, None if its config files are not as expected.

    Args:
        pipeline: its folder.
        height: of pictures in pixels, None = the pipeline's own.
        width: the same.
        t5_tokens: of a prompt, None = the pipeline's own default.
    """
    try:
        network, vae = _read_json(pipeline / "transformer/config.json"), _read_json(pipeline / "vae/config.json")
        channels = vae["block_out_channels"]
        scale, patch = 2 ** (len(channels) - 1), network["patch_size"]
        own = network["sample_size"] * scale
        rows, columns = (height or own) // scale, (width or own) // scale
        text = pipeline / "text_encoder/config.json"
        clip_tokens = _read_json(text)["max_position_embeddings"] if text.exists() else DEFAULT_CLIP_TOKENS
        text_tokens = clip_tokens + (DEFAULT_T5_TOKENS if t5_tokens is None else t5_tokens)
        return Geometry(
            latent_elements=network["in_channels"] * rows * columns,
            pixels=rows * columns * scale**2,
            tokens=(rows // patch) * (columns // patch) + text_tokens,
            width=network["num_attention_heads"] * network["attention_head_dim"],
            layers=network["num_layers"],
            decoder_channels=channels[0],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content
