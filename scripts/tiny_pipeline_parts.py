"""The untrained parts of the tiny pipeline: tokenizer, text encoders, VAE and transformer, and their sizes.

`scripts/build_tiny_pipeline.py` trains them.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffusers import AutoencoderKL, SD3Transformer2DModel
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

MAX_TOKENS = 12
"""Tokens of a caption with both special ones; the longest prompt has ten."""


def train_merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Byte-pair merges that turn every one of `words` into a single token; the most frequent pair first."""
    splits = [[*word[:-1], word[-1] + "</w>"] for word in sorted(set(words))]
    merges: list[tuple[str, str]] = []
    while any(len(split) > 1 for split in splits):
        pairs: dict[tuple[str, str], int] = {}
        for split in splits:
            for pair in zip(split, split[1:], strict=False):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for split in splits:
            for i in range(len(split) - 2, -1, -1):
                if tuple(split[i : i + 2]) == best:
                    split[i : i + 2] = ["".join(best)]
    return merges


def build_tokenizer(words: Sequence[str]) -> CLIPTokenizer:
    """A CLIP tokenizer in which each of `words` is one token and any other text falls apart into bytes."""
    alphabet = sorted(ByteLevel.alphabet())
    merges = train_merges(words)
    tokens = [*alphabet, *(letter + "</w>" for letter in alphabet), *("".join(pair) for pair in merges)]
    vocab = {token: i for i, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=MAX_TOKENS)


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModelWithProjection:
    """A two-layer CLIP text encoder with the tokenizer's special ids."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        projection_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = CLIPTextModelWithProjection(config)
    for table in (encoder.text_model.embeddings.token_embedding, encoder.text_model.embeddings.position_embedding):
        nn.init.normal_(table.weight, std=0.5)  # CLIP's 0.02 would hide the caption from the transformer at first
    return encoder


def build_vae() -> AutoencoderKL:
    """32x32x3 pictures to 8x8x4 latents."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def build_transformer() -> SD3Transformer2DModel:
    """Four joint blocks over 16 picture tokens."""
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=128,
        caption_projection_dim=128,
        pooled_projection_dim=128,
        pos_embed_max_size=4,
    )
