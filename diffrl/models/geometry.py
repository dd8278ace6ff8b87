"""Sizes of a family's latents, tokens and pictures, which its activations depend on; from config values alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diffrl.models.architecture import Architecture

DEFAULT_CLIP_TOKENS = 77
STOCK_VIDEO = (480, 832, 81)
"""Height, width and frames that Wan's stock call takes."""

VAE_DTYPE: Mapping[str, str] = {"wan": "float32"}
"""What a family's picture decoder needs, where it is not what the pipeline computes in: the adapter's `vae_dtype`."""


@dataclass(frozen=True)
class Activations:
    """Numbers that a transformer block holds for each token, in multiples of its width.

    Args:
        saved: for backward; what autograd kept of one more block, LoRA on the family's targets, bfloat16 autocast and
            fused attention. SD3's is the same for full fine-tuning in float32.
        forward: at most at once without gradient, with the network's ends.
    """

    saved: float
    forward: float


ACTIVATIONS: Mapping[str, Activations] = {
    "sd3": Activations(saved=21, forward=12),
    "flux": Activations(saved=17, forward=19),
    "sana": Activations(saved=39, forward=16),
    "wan": Activations(saved=32, forward=18),
}
"""Measured at width 512 with diffusers 0.42; the last digit depends on the ratio of text to picture."""

DECODER_MAPS: Mapping[str, float] = {"AutoencoderKL": 6, "AutoencoderDC": 7, "AutoencoderKLWan": 52, "residual": 86}
"""Most that a decoder holds at once, in maps of its last block's channels at full resolution: live storages of a dry
run of the published autoencoders. Wan's decodes one latent frame after another; `residual` is Wan 2.2's, in patches."""


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


@dataclass(frozen=True)
class Size:
    """What is asked of a pipeline; None = its own choice."""

    height: int | None = None
    width: int | None = None
    frames: int | None = None
    text_tokens: int = 0


Values = Mapping[str, Any]


def read_geometry(family: str, architecture: Architecture, size: Size) -> Geometry | None:
    """Sizes of a pipeline, None if its family is not known here or its configs are not as expected.

    Args:
        family: its name.
        architecture: of the pipeline.
        size: of pictures and prompts.
    """
    reader = READERS.get(family)
    if reader is None:
        return None
    try:
        return reader(architecture, size)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError, AttributeError):
        return None


def _sd3(a: Architecture, size: Size) -> Geometry:
    network, vae = a.configs["transformer"], a.configs["vae"]
    scale = 2 ** (len(vae["block_out_channels"]) - 1)
    rows, columns = _grid(size, network["sample_size"] * scale, scale)
    clip = a.configs.get("text_encoder", {}).get("max_position_embeddings", DEFAULT_CLIP_TOKENS)
    text, width = clip + size.text_tokens, network["num_attention_heads"] * network["attention_head_dim"]
    return Geometry(
        network["in_channels"] * rows * columns,
        rows * columns * scale**2,
        (rows // network["patch_size"]) * (columns // network["patch_size"]) + text,
        width,
        network["num_layers"],
        2 * (text * network["joint_attention_dim"] + network["pooled_projection_dim"]),
        *_decoder(vae, rows * columns * scale**2),
        ACTIVATIONS["sd3"],
    )


def _flux(a: Architecture, size: Size) -> Geometry:
    network, vae = a.configs["transformer"], a.configs["vae"]
    scale = 2 ** (len(vae["block_out_channels"]) - 1)
    rows, columns = _grid(size, 128 * scale, scale)
    return Geometry(
        network["in_channels"] * (rows // 2) * (columns // 2),
        rows * columns * scale**2,
        (rows // 2) * (columns // 2) + size.text_tokens,
        network["num_attention_heads"] * network["attention_head_dim"],
        network["num_layers"] + network["num_single_layers"],
        size.text_tokens * network["joint_attention_dim"] + network["pooled_projection_dim"],
        *_decoder(vae, rows * columns * scale**2),
        ACTIVATIONS["flux"],
    )


def _sana(a: Architecture, size: Size) -> Geometry:
    network, vae = a.configs["transformer"], a.configs["vae"]
    scale = 2 ** (len(vae["encoder_block_out_channels"]) - 1)
    rows, columns = _grid(size, network["sample_size"] * scale, scale)
    return Geometry(
        network["in_channels"] * rows * columns,
        rows * columns * scale**2,
        (rows // network["patch_size"]) * (columns // network["patch_size"]),
        network["num_attention_heads"] * network["attention_head_dim"],
        network["num_layers"],
        2 * size.text_tokens * (network["caption_channels"] + 1),
        *_decoder(vae, rows * columns * scale**2),
        ACTIVATIONS["sana"],
    )


def _wan(a: Architecture, size: Size) -> Geometry:
    network, vae = a.configs["transformer"], a.configs["vae"]
    stock_height, stock_width, stock_frames = STOCK_VIDEO
    scale, period = vae.get("scale_factor_spatial") or 8, vae.get("scale_factor_temporal") or 4
    rows, columns = (size.height or stock_height) // scale, (size.width or stock_width) // scale
    frames = ((size.frames or stock_frames) - 1) // period + 1
    _, high, wide = network["patch_size"]
    pixels = rows * columns * scale**2
    return Geometry(
        network["in_channels"] * frames * rows * columns,
        pixels * ((frames - 1) * period + 1),
        frames * (rows // high) * (columns // wide),
        network["num_attention_heads"] * network["attention_head_dim"],
        network["num_layers"],
        2 * size.text_tokens * network["text_dim"],
        *_decoder(vae, pixels),
        ACTIVATIONS["wan"],
    )


def _grid(size: Size, own: int, scale: int) -> tuple[int, int]:
    """Rows and columns of the latents."""
    return (size.height or own) // scale, (size.width or own) // scale


def _decoder(vae: Values, pixels: int) -> tuple[int, int]:
    """Numbers that decoding a picture of `pixels` (of a video one frame) holds at once, and with tiles."""
    if "block_out_channels" in vae:
        maps, channels, tile = DECODER_MAPS["AutoencoderKL"], vae["block_out_channels"][0], vae["sample_size"]
    elif "decoder_block_out_channels" in vae:
        maps, channels, tile = DECODER_MAPS["AutoencoderDC"], vae["decoder_block_out_channels"][0], 512
    else:
        maps, channels, tile = DECODER_MAPS["AutoencoderKLWan"], vae["base_dim"], 256
        if vae.get("is_residual"):
            maps, channels = DECODER_MAPS["residual"], vae.get("decoder_base_dim") or channels
        maps /= (vae.get("patch_size") or 1) ** 2
    return int(maps * channels * pixels), int(maps * channels * min(pixels, tile**2))


READERS: Mapping[str, Callable[[Architecture, Size], Geometry]] = {
    "sd3": _sd3,
    "flux": _flux,
    "sana": _sana,
    "wan": _wan,
}
"""A family without an entry is planned without its activations, and the plan says so."""
