"""A tiny SANA pipeline with random weights; see `tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diffrl.models.tiny_text import build_word_tokenizer


def build_sana_pipeline(words: Sequence[str], seed: int) -> Any:
    """A `SanaPipeline` for 32 x 32 pictures, float32, with random weights: Gemma 2, DC-AE and DPM-Solver++ as in SANA.

    Args:
        words: each becomes a single token.
        seed: of the weights.
    """
    from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel
    from transformers import Gemma2Config, Gemma2Model

    tokenizer = build_word_tokenizer(words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SanaPipeline(
            tokenizer=tokenizer,
            text_encoder=Gemma2Model(
                Gemma2Config(
                    vocab_size=len(tokenizer),
                    hidden_size=32,
                    intermediate_size=32,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    num_key_value_heads=1,
                    head_dim=16,
                    max_position_embeddings=512,
                )
            ),
            vae=AutoencoderDC(
                in_channels=3,
                latent_channels=4,
                attention_head_dim=2,
                encoder_block_types=("ResBlock", "EfficientViTBlock"),
                decoder_block_types=("ResBlock", "EfficientViTBlock"),
                encoder_block_out_channels=(8, 8),
                decoder_block_out_channels=(8, 8),
                encoder_qkv_multiscales=((), (5,)),
                decoder_qkv_multiscales=((), (5,)),
                encoder_layers_per_block=(1, 1),
                decoder_layers_per_block=(1, 1),
                downsample_block_type="conv",
                upsample_block_type="interpolate",
                decoder_norm_types="rms_norm",
                decoder_act_fns="silu",
                scaling_factor=0.41407,
            ),
            transformer=SanaTransformer2DModel(
                patch_size=1,
                in_channels=4,
                out_channels=4,
                num_layers=2,
                num_attention_heads=2,
                attention_head_dim=16,
                num_cross_attention_heads=2,
                cross_attention_head_dim=16,
                cross_attention_dim=32,
                caption_channels=32,
                sample_size=16,
            ),
            scheduler=DPMSolverMultistepScheduler(
                algorithm_type="dpmsolver++", prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
            ),
        )
