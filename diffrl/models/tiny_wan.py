"""A tiny Wan text-to-video pipeline with random weights, in every detail like the real ones but for its size.

`scripts/build_tiny_video_pipeline.py` trains it; tests use it as it is. Made offline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from diffrl.models.tiny_text import build_word_tokenizer

TEXT_TOKENS = 8
"""Prompt length that diffrl uses with the tiny pipeline; a plain call of the stock pipeline pads to 512."""

FLOW_SHIFT = 3.0
"""Shift of the noise schedule, as in Wan 2.1 for small videos."""

SETTINGS = {"max_sequence_length": TEXT_TOKENS, "height": 32, "width": 32, "frames": 9}
"""What the trained pipeline was trained with, for diffrl to use where the configuration leaves it open."""

_TEXT_DIM = 64
_LATENT_CHANNELS = 8


def build_wan_pipeline(words: Sequence[str], seed: int, boundary_ratio: float | None = None) -> Any:
    """A `WanPipeline` for videos of 4 n + 1 frames and sides in multiples of 16, float32, with random weights.

    Args:
        words: each becomes a single token; letter case does not matter, and any other word is unknown.
        seed: of the weights.
        boundary_ratio: None as in Wan 2.1; in (0, 1) a second transformer takes the timesteps below this share of
            1,000, as in Wan 2.2.
    """
    from diffusers import UniPCMultistepScheduler, WanPipeline

    tokenizer = build_word_tokenizer(words)
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=FLOW_SHIFT, num_train_timesteps=1000
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return WanPipeline(
            tokenizer=tokenizer,
            text_encoder=build_umt5(tokenizer),
            transformer=build_wan_transformer(),
            vae=build_wan_vae(),
            scheduler=scheduler,
            transformer_2=None if boundary_ratio is None else build_wan_transformer(),
            boundary_ratio=boundary_ratio,
        )


def build_umt5(tokenizer: Any) -> nn.Module:
    """A two-layer UMT5 encoder with the tokenizer's special ids."""
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=_TEXT_DIM,
        d_kv=32,
        d_ff=128,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: nn.Module = UMT5EncoderModel(config)
    return model


def build_wan_vae() -> nn.Module:
    """Videos (3, 4 n + 1, 8 h, 8 w) to latents (8, n + 1, h, w): the layers of the Wan 2.2 5B autoencoder.

    It works on 2 x 2 pixel patches and has shortcuts around its resampling, so it is fast and learns fast.
    """
    from diffusers import AutoencoderKLWan

    model: nn.Module = AutoencoderKLWan(
        base_dim=16,
        z_dim=_LATENT_CHANNELS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        is_residual=True,
        patch_size=2,
        in_channels=12,
        out_channels=12,
        latents_mean=[0.0] * _LATENT_CHANNELS,
        latents_std=[1.0] * _LATENT_CHANNELS,
    )
    return model


def build_wan_transformer() -> nn.Module:
    """Four blocks over 2 x 2 patches of each latent frame."""
    from diffusers import WanTransformer3DModel

    model: nn.Module = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=_LATENT_CHANNELS,
        out_channels=_LATENT_CHANNELS,
        text_dim=_TEXT_DIM,
        freq_dim=64,
        ffn_dim=512,
        num_layers=4,
        rope_max_seq_len=64,
    )
    return model
