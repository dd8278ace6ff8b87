"""Tiny pipelines with random weights, in every detail like the real ones but for their size; made offline.

`scripts/build_tiny_pipeline.py` trains one of them; tests use them as they are.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffrl.models.shipped import SETTINGS_FILE

MAX_TOKENS = 12
EMBEDDING = 128
T5_TOKENS = 1
"""Length of the T5 part that diffrl uses: the placeholder's output is zero, so one token of it is as good as many."""


BUILDERS = {
    "sd3": "diffrl.models.tiny:build_sd3_pipeline",
    "flux": "diffrl.models.tiny_flux:build_flux_pipeline",
    "sana": "diffrl.models.tiny_sana:build_sana_pipeline",
    "wan": "diffrl.models.tiny_wan:build_wan_pipeline",
    "qwen_image": "diffrl.models.tiny_qwen_image:build_qwen_image_pipeline",
}
SETTINGS = {
    "StableDiffusion3Pipeline": {"max_sequence_length": T5_TOKENS},
    "FluxPipeline": {"max_sequence_length": 12, "height": 32, "width": 32},
    "SanaPipeline": {"max_sequence_length": 12, "height": 32, "width": 32},
    "WanPipeline": {"max_sequence_length": 8, "height": 32, "width": 32, "frames": 9},
    "QwenImagePipeline": {"max_sequence_length": 20, "height": 32, "width": 32},
}
"""What diffrl uses the tiny pipelines with; stock calls have other defaults."""


def build_sd3_pipeline(words: Sequence[str], seed: int) -> Any:
    """A `StableDiffusion3Pipeline` for 32 x 32 pictures, float32, with random weights.

    `from_pretrained` wants a third text encoder, so there is one: a T5 of 4,000 weights whose last norm is zero, which
    gives the zeros that the stock pipeline puts in place of a missing T5.

    Args:
        words: each becomes a single token of the CLIP tokenizer.
        seed: of the weights.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

    tokenizer = build_clip_tokenizer(words)
    t5_tokenizer, t5 = build_zero_t5()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return StableDiffusion3Pipeline(
            transformer=build_sd3_transformer(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
            vae=build_vae(),
            text_encoder=build_clip(tokenizer),
            tokenizer=tokenizer,
            text_encoder_2=build_clip(tokenizer),
            tokenizer_2=tokenizer,
            text_encoder_3=t5,
            tokenizer_3=t5_tokenizer,
        )


def build_pipeline(family: str, words: Sequence[str], seed: int) -> Any:
    """A tiny pipeline of a family; see the builders named in `BUILDERS`."""
    module, _, function = BUILDERS[family].partition(":")
    return getattr(importlib.import_module(module), function)(words, seed)


def save_pipeline(pipeline: Any, directory: Path) -> None:
    """Write a pipeline in diffusers format, with the settings that diffrl should use it with."""
    pipeline.save_pretrained(directory)
    for file in directory.glob("*/config.json"):  # where a part was made is nobody's business
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("_name_or_path", None) is not None:
            file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    settings = SETTINGS[type(pipeline).__name__]
    (directory / SETTINGS_FILE).write_text(json.dumps(settings) + "\n", encoding="utf-8")


def build_clip_tokenizer(words: Sequence[str]) -> Any:
    """A CLIP tokenizer in which each of `words` is one token and any other text falls apart into bytes."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    alphabet = sorted(ByteLevel.alphabet())
    merges = train_merges(words)
    tokens = [*alphabet, *(letter + "</w>" for letter in alphabet), *("".join(pair) for pair in merges)]
    vocab = {token: i for i, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=MAX_TOKENS)


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


def build_clip(tokenizer: Any, projected: bool = True) -> Any:
    """A two-layer CLIP text encoder with the tokenizer's special ids, with the projection that SD3 wants or without."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=EMBEDDING // 2,
        intermediate_size=256,
        projection_dim=EMBEDDING // 2,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)
    embeddings = getattr(model, "text_model", model).embeddings  # older transformers have one more level
    for table in (embeddings.token_embedding, embeddings.position_embedding):
        nn.init.normal_(table.weight, std=0.5)  # CLIP's 0.02 would hide the caption from the transformer at first
    return model


def build_zero_t5() -> tuple[Any, nn.Module]:
    """A T5 encoder whose output is zero, and a tokenizer that reads nothing of a prompt but its end."""
    from tokenizers import Regex, Tokenizer, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    reader = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    reader.normalizer = normalizers.Replace(Regex(r"[\s\S]"), "")
    reader.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=reader, model_max_length=512, **special)
    model = T5EncoderModel(T5Config(vocab_size=3, d_model=EMBEDDING, d_kv=4, d_ff=4, num_layers=1, num_heads=1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return tokenizer, model


def build_vae() -> nn.Module:
    """32 x 32 x 3 pictures to 8 x 8 x 4 latents."""
    from diffusers import AutoencoderKL

    model: nn.Module = AutoencoderKL(
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
        shift_factor=0.0,
    )
    return model


def build_sd3_transformer() -> nn.Module:
    """Four joint blocks over 16 picture tokens."""
    from diffusers import SD3Transformer2DModel

    model: nn.Module = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=EMBEDDING,
        caption_projection_dim=EMBEDDING,
        pooled_projection_dim=EMBEDDING,
        pos_embed_max_size=4,
    )
    return model
