"""Sizes of latents, tokens and pictures, which activations depend on: what a family's file reads them with.

From config values alone; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diffrl.models.architecture import Architecture

if TYPE_CHECKING:
    from diffrl.models.family import Family

ENCODINGS_KEPT = 4 * 2**30
"""Bytes of prompts' encodings that a run keeps in the computer's memory; a plan counts them."""


@dataclass(frozen=True)
class Activations:
    """Numbers that a transformer block holds for each token, in multiples of its width.

    Args:
        saved: for backward, of one block.
        forward: at most at once without gradient, with the network's ends.
        backward: at most at once while the backward pass goes through one block, what was saved of it included.

    Living storages of the published networks in bfloat16 with LoRA on the family's targets, fused attention and norms,
    on fake tensors with diffusers 0.42 (scripts/measure_memory.py); the last digit depends on the ratio of text to
    picture.
    """

    saved: float
    forward: float
    backward: float


DECODER_MAPS: Mapping[str, float] = {
    "AutoencoderKL": 6,
    "AutoencoderDC": 7,
    "AutoencoderKLWan": 52,
    "residual": 86,
    "still": 18,
}
"""Most that a decoder holds at once, in maps of its last block's channels at full resolution: live storages of a dry
run of the published autoencoders. Wan's decodes one latent frame after another; `residual` is Wan 2.2's, in patches;
`still` is Wan 2.1's for a single frame, which is Qwen-Image's."""


@dataclass(frozen=True)
class Geometry:
    """Sizes that activations depend on.

    Args:
        latent_elements: numbers in one sample's latents.
        pixels: of one picture, or of all frames of a video.
        tokens: that pass through the transformer's blocks: of the picture, and of the text where they are joined.
        width: of the transformer, in numbers a token.
        layers: of the transformer.
        encoding_elements: numbers in one prompt's encoding, the empty prompt's included where guidance asks for it.
        decoder_elements: numbers that decoding one sample holds at once.
        tile_elements: the same with tiles.
        activations: of the transformer's blocks.
        source_tokens: of `tokens` those of an image to edit.
        joined_elements: numbers that are joined to the latents' channels: an encoded first frame and its mask.
        image_tokens: of an image that is attended to beside the text, as CLIP sees it.
        text_tokens: of `tokens` those of each embedder of text, where the first layer has channels beside the latents'.
    """

    latent_elements: int
    pixels: int
    tokens: int
    width: int
    layers: int
    encoding_elements: int
    decoder_elements: int
    tile_elements: int
    activations: Activations
    source_tokens: int = 0
    joined_elements: int = 0
    image_tokens: int = 0
    text_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Size:
    """What is asked of a pipeline; None = its own choice."""

    height: int | None = None
    width: int | None = None
    frames: int | None = None
    text_tokens: int = 0


def read_geometry(family: Family, architecture: Architecture, size: Size) -> Geometry | None:
    """Sizes of a pipeline, None if its family does not read them or its configs are not as expected.

    Args:
        family: its facts.
        architecture: of the pipeline.
        size: of pictures and prompts.
    """
    if family.geometry is None:
        return None
    try:
        return family.geometry(architecture, size)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, AttributeError):
        return None


def packed_geometry(found: Architecture, size: Size, text_elements: int, activations: Activations) -> Geometry:
    """Sizes of a FLUX: latents as 2 x 2 patches, blocks that text and picture pass together, double and single ones.

    Args:
        found: the pipeline.
        size: of a sample.
        text_elements: of a prompt's encoding.
        activations: of its blocks.
    """
    network, vae = found.configs["transformer"], found.configs["vae"]
    scale = 2 ** (len(vae["block_out_channels"]) - 1)
    rows, columns = latent_grid(size, 128 * scale, scale)
    return Geometry(
        network["in_channels"] * (rows // 2) * (columns // 2),
        rows * columns * scale**2,
        (rows // 2) * (columns // 2) + size.text_tokens,
        network_width(network),
        network["num_layers"] + network["num_single_layers"],
        text_elements,
        *decoder_elements(vae, rows * columns * scale**2),
        activations,
    )


def latent_grid(size: Size, own: int, scale: int) -> tuple[int, int]:
    """Rows and columns of the latents; `own` is the pipeline's side in pixels."""
    return (size.height or own) // scale, (size.width or own) // scale


def network_width(network: Mapping[str, Any]) -> int:
    """Numbers a token in the transformer."""
    return int(network["num_attention_heads"] * network["attention_head_dim"])


def decoder_elements(vae: Mapping[str, Any], pixels: int, still: bool = False) -> tuple[int, int]:
    """Numbers that decoding a picture of `pixels` (of a video one frame) holds at once, and with tiles.

    Args:
        vae: its config.
        pixels: of the picture.
        still: whether a decoder of videos draws single frames alone.
    """
    if "block_out_channels" in vae:
        maps, channels, tile = DECODER_MAPS["AutoencoderKL"], vae["block_out_channels"][0], vae["sample_size"]
    elif "decoder_block_out_channels" in vae:
        maps, channels, tile = DECODER_MAPS["AutoencoderDC"], vae["decoder_block_out_channels"][0], 512
    else:
        maps, channels, tile = DECODER_MAPS["still" if still else "AutoencoderKLWan"], vae["base_dim"], 256
        if vae.get("is_residual"):
            maps, channels = DECODER_MAPS["residual"], vae.get("decoder_base_dim") or channels
        maps /= (vae.get("patch_size") or 1) ** 2
    return int(maps * channels * pixels), int(maps * channels * min(pixels, tile**2))
