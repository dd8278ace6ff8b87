"""Floating-point operations of a network evaluation, from the shapes of its weights; nothing is loaded.

A weight matrix of a layer takes two operations a weight for each token that passes it, and attention four times
queries x keys x width. Which tokens pass a layer, its name says: the text's, the picture's, both, or one for the whole
sample, as in the layers that make scales and shifts of the noise level; these hold up to a third of the weights.
Norms, activations and a LoRA's own adapters are left out: together about a hundredth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from diffrl.config.schema import Config
from diffrl.cost.memory import asked_size
from diffrl.models.architecture import Architecture, Shapes, describe_pipeline
from diffrl.models.geometry import Geometry, read_geometry

ONCE = re.compile(r"norm|time|guidance_embed|_mod\.|modulation|^t_embedder")
TWICE = re.compile(r"^time_text_embed|img_mod\.")
"""Of these, layers that Qwen-Image-Edit-2511 passes for the source's timestep too, which is 0 (`zero_cond_t`)."""
TEXT = re.compile(
    r"add_[qkv]_proj|to_add_out|ff_context|context_embedder|caption_proj|text_embedder|txt_mlp|txt_in|cap_embedder"
    r"|context_refiner"
)
IMAGE = re.compile(r"image_embedder|attn2\.add_[kv]_proj$")
"""Layers that CLIP's tokens of an image pass, as in Wan's image to video."""
IDLE = re.compile(r"^image_embedder|^cond_type_embed")
"""Layers of HunyuanVideo that text alone does not pass, and a table of which nothing is multiplied."""
CROSS = re.compile(r"attn2\.to_[kv]$")
JOINT = ("single_transformer_blocks.", "layers.", "all_final_layer.")
"""Stacks of layers that text and picture pass together."""
EMBEDDERS = ("pos_embed.proj", "x_embedder", "all_x_embedder.2-1", "patch_embed.proj", "patch_embedding", "img_in")
"""Layers that make a token of a patch of the latents."""


def evaluation_flops(config: Config) -> int | None:
    """Operations of one sample through the network once, forward; None where the pipeline's sizes are not known.

    With guidance a step takes two such evaluations.
    """
    found = describe_pipeline(config.model.path)
    size = asked_size(config)
    geometry = None if found is None else read_geometry(config.model.facts, found, size)
    if found is None or geometry is None:
        return None
    try:
        return network_flops(found, geometry, size.text_tokens, config.model.facts.linear_attention)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # an adapter of the user's, with other names
        return None


def network_flops(found: Architecture, geometry: Geometry, text_tokens: int, linear: bool = False) -> int:
    """Operations of one evaluation.

    Args:
        found: the pipeline; of two networks the first, which is as large as the other.
        geometry: of a sample.
        text_tokens: of a prompt, where text is attended to and not joined with the picture.
        linear: whether self-attention is linear.

    Raises:
        ValueError: none of the weights makes tokens.
        KeyError: a config lacks the heads' width.
    """
    shapes = found.shapes[found.networks[0]]
    picture = _picture_tokens(shapes, geometry)
    joint = geometry.tokens > picture
    text = geometry.tokens - picture if joint else text_tokens
    twice, total = found.configs[found.networks[0]].get("zero_cond_t"), 0
    for layer, shape in _layers(shapes):
        if IDLE.search(layer):
            continue
        tokens = picture
        if IMAGE.search(layer):
            tokens = geometry.image_tokens
        elif ONCE.search(layer):
            tokens = 2 if twice and TWICE.search(layer) else 1
        elif layer.startswith("context_embedder") and len(geometry.text_tokens) == 2:
            tokens = geometry.text_tokens[layer.startswith("context_embedder_2")]
        elif TEXT.search(layer) or (not joint and CROSS.search(layer)):
            tokens = text
        elif layer.startswith(JOINT):
            tokens = geometry.tokens
        if IMAGE.search(layer):
            tokens = geometry.image_tokens
        total += 2 * math.prod(shape) * tokens
        if layer.endswith(".to_qkv_mlp_proj"):  # attention and feed-forward layer in one
            total += 4 * geometry.tokens**2 * shape[1]
        if layer.endswith(".to_q"):
            second = layer.endswith("attn2.to_q")
            queries = keys = geometry.tokens if joint and not second and "refiner" not in layer else tokens
            if linear and not second:
                keys = int(found.configs[found.networks[0]]["attention_head_dim"]) + 1
            elif second and not joint:
                keys = text + geometry.image_tokens
            total += 4 * queries * keys * shape[0]
    return total


def _picture_tokens(shapes: Shapes, geometry: Geometry) -> int:
    if geometry.text_tokens:
        return geometry.tokens - sum(geometry.text_tokens)
    for name in EMBEDDERS:
        if (shape := shapes.get(f"{name}.weight")) is not None:
            entering = geometry.latent_elements + geometry.joined_elements
            return entering // math.prod(shape[1:]) + geometry.source_tokens
    raise ValueError("no layer makes tokens of latents")


def _layers(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Matrices and convolutions, without biases and norms."""
    for name, shape in shapes.items():
        if name.endswith(".weight") and len(shape) >= 2:
            yield name.removesuffix(".weight"), shape
