"""A tiny Qwen-Image pipeline with random weights; see `tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

TEMPLATE = (
    "system Describe user assistant",  # these begin a line, so they have no space before them
    "the image by detailing color shape size texture quantity text spatial relationships of objects and background",
)
"""Words of the chat template that must be one token each: the pipeline cuts off its first 34 tokens by number."""


def build_qwen_image_pipeline(words: Sequence[str], seed: int) -> Any:
    """A `QwenImagePipeline` for 32 x 32 pictures, float32, with random weights.

    Args:
        words: each becomes a single token, except at the beginning of a prompt.
        seed: of the weights.
    """
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )

    tokenizer = build_qwen_tokenizer(words)
    shift = {"base_shift": 0.5, "max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QwenImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **shift),
            vae=AutoencoderKLQwenImage(
                base_dim=8,
                z_dim=4,
                dim_mult=[1, 2, 2],
                num_res_blocks=1,
                temperal_downsample=[False, True],
                latents_mean=[-0.7571, 0.1075, 0.4134, -0.2921],
                latents_std=[2.8184, 1.4541, 2.3275, 1.916],
            ),
            text_encoder=build_qwen_vl(len(tokenizer)),
            tokenizer=tokenizer,
            transformer=QwenImageTransformer2DModel(
                in_channels=16,
                out_channels=4,
                num_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                axes_dims_rope=(4, 6, 6),
            ),
        )


def build_qwen_tokenizer(words: Sequence[str]) -> Any:
    """A Qwen2 tokenizer in which each of `words`, after a space, and each word of the template is one token."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    first, later = (part.split() for part in TEMPLATE)
    whole = [*("Ġ" + word for word in sorted({*later, *words})), *first]  # no later merge can break a word with a space
    merges = list(dict.fromkeys((word[:i], word[i]) for word in whole for i in range(1, len(word))))
    alphabet = sorted(ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = dict.fromkeys([*alphabet, *("".join(pair) for pair in merges), *special])
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges, additional_special_tokens=special[1:]
    )


def build_qwen_vl(vocabulary: int, width: int = 32) -> nn.Module:
    """A two-layer Qwen2.5-VL, (B, L) tokens to (B, L, width); the part that sees pictures is there and idle."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": width}
    model: nn.Module = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    return model
