"""A tiny FLUX.1 pipeline with random weights; see `tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diffrl.models.tiny import build_clip, build_clip_tokenizer
from diffrl.models.tiny_text import build_t5, build_word_tokenizer


def build_flux_pipeline(words: Sequence[str], seed: int) -> Any:
    """A `FluxPipeline` for 32 x 32 pictures, float32, with random weights and embedded guidance.

    Args:
        words: each becomes a single token.
        seed: of the weights.
    """
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    clip_tokenizer, tokenizer = build_clip_tokenizer(words), build_word_tokenizer(words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 3,
                up_block_types=("UpDecoderBlock2D",) * 3,
                block_out_channels=(8, 8, 16),
                layers_per_block=1,
                latent_channels=4,
                norm_num_groups=4,
                sample_size=32,
                use_quant_conv=False,
                use_post_quant_conv=False,
                mid_block_add_attention=False,
                scaling_factor=0.3611,
                shift_factor=0.1159,
            ),
            text_encoder=build_clip(clip_tokenizer, projected=False),
            tokenizer=clip_tokenizer,
            text_encoder_2=build_t5(len(tokenizer)),
            tokenizer_2=tokenizer,
            transformer=FluxTransformer2DModel(
                patch_size=1,
                in_channels=16,
                num_layers=2,
                num_single_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                pooled_projection_dim=64,
                guidance_embeds=True,
                axes_dims_rope=(4, 6, 6),
            ),
        )
