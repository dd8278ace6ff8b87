"""Tiny pipelines with random weights, in every detail like the real ones but for their size; made offline.

Each family builds its own from the parts below. `scripts/build_tiny_pipeline.py` trains one of them; tests use them as
they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffrl.files import follow_umask
from diffrl.models.families import FILES
from diffrl.models.shipped import SETTINGS_FILE

MAX_TOKENS = 16
EMBEDDING = 128


def build_pipeline(family: str, words: Sequence[str], seed: int, **options: Any) -> Any:
    """Return a tiny pipeline of a family in float32, with random weights.

    Args:
        family: its name.
        words: each becomes a single token of its tokenizer.
        seed: of the weights.
        **options: of the family's `build_tiny`.
    """
    file: Any = next(file for file in FILES if file.FAMILY.name == family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return file.build_tiny(words, **options)


def tiny_settings(pipeline: Any) -> Mapping[str, int]:
    """Return what diffrl uses a tiny pipeline with, as adapter options; stock calls have other defaults."""
    name = type(pipeline).__name__
    file: Any = next(file for file in FILES if name in file.FAMILY.pipelines)
    settings: Mapping[str, int] = file.TINY_SETTINGS
    return settings


def save_pipeline(pipeline: Any, directory: Path, settings: Mapping[str, int] | None = None) -> None:
    """Write a tiny pipeline in diffusers format, with the settings that diffrl should use it with.

    Args:
        pipeline: what to write.
        directory: where to.
        settings: adapter options of this pipeline beside those of its family.
    """
    pipeline.save_pretrained(directory)
    for file in directory.glob("*/config.json"):  # where a part was made is nobody's business
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("_name_or_path", None) is not None:
            file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    stated = {**tiny_settings(pipeline), **(settings or {})}
    (directory / SETTINGS_FILE).write_text(json.dumps(stated) + "\n", encoding="utf-8")
    follow_umask(directory)


def build_clip_tokenizer(words: Sequence[str]) -> Any:
    """Return a CLIP tokenizer in which each of `words` is one token and any other text falls apart into bytes."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    alphabet = sorted(ByteLevel.alphabet())
    merges = train_merges(words)
    tokens = [*alphabet, *(letter + "</w>" for letter in alphabet), *("".join(pair) for pair in merges)]
    vocab = {token: i for i, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=MAX_TOKENS)


def train_merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return byte-pair merges that turn every one of `words` into a single token; the most frequent pair first."""
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
    """Build a two-layer CLIP text encoder with the tokenizer's special ids, with SD3's projection or without."""
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
    """Return a T5 encoder whose output is zero, and a tokenizer that reads nothing of a prompt but its end."""
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


def build_word_tokenizer(words: Sequence[str]) -> Any:
    """Return a tokenizer in which each of `words` is one token and any other word is unknown; ends with `</s>`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocab = {token: i for i, token in enumerate([*special.values(), *sorted(set(words))])}
    reader = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    reader.normalizer = normalizers.Lowercase()
    reader.pre_tokenizer = pre_tokenizers.Whitespace()
    reader.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", vocab["</s>"])])
    return PreTrainedTokenizerFast(tokenizer_object=reader, model_max_length=512, **special)


def build_t5(vocabulary: int, width: int = 32) -> nn.Module:
    """Return a one-layer T5 encoder, (B, L) tokens to (B, L, width)."""
    from transformers import T5Config, T5EncoderModel

    model: nn.Module = T5EncoderModel(
        T5Config(
            vocab_size=vocabulary,
            d_model=width,
            d_kv=width // 2,
            d_ff=2 * width,
            num_layers=1,
            num_heads=2,
            dropout_rate=0.0,
        )
    )
    return model


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
"""Qwen3's for one message, with the empty thought that it puts into an answer that shall have none."""


def build_qwen_tokenizer(
    words: Sequence[str],
    template: tuple[str, str] = ("user assistant", ""),
    spaces: int = 0,
    more: Sequence[str] = (),
) -> Any:
    """Return a Qwen2 tokenizer with a chat template, in which each of `words` after a space is one token.

    Args:
        words: what prompts are made of; any other text falls apart into bytes.
        template: words of a chat template that shall be one token each: those that begin a line, and the others.
        spaces: that shall be one token in a row, a power of two.
        more: special tokens beside those of a chat.
    """
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    first, later = (part.split() for part in template)
    whole = [*("Ġ" + word for word in sorted({*later, *words})), *first]  # no later merge can break a word with a space
    merges = list(dict.fromkeys((word[:i], word[i]) for word in whole for i in range(1, len(word))))
    merges += [("Ġ" * 2**i, "Ġ" * 2**i) for i in range(spaces.bit_length() - 1)]
    alphabet = sorted(ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *more]
    tokens = dict.fromkeys([*alphabet, *("".join(pair) for pair in merges), *special])
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        additional_special_tokens=special[1:],
        chat_template=CHAT_TEMPLATE,
    )


def build_qwen_vl(vocabulary: int, width: int = 32, **tokens: int) -> Any:
    """Build a two-layer Qwen2.5-VL, (B, L) tokens to (B, L, width); its tower for images may be idle.

    Args:
        vocabulary: tokens.
        width: of the language model.
        **tokens: `image_token_id` and the like, where it is to see pictures.
    """
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = _qwen_vl_text(vocabulary, 2, width)
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": width}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens))


def build_qwen_vl_text(vocabulary: int, layers: int = 2, width: int = 32) -> nn.Module:
    """Return the language model alone of a Qwen2.5-VL, (B, L) tokens to (B, L, width)."""
    from transformers import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

    model: nn.Module = Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**_qwen_vl_text(vocabulary, layers, width)))
    return model


def _qwen_vl_text(vocabulary: int, layers: int, width: int) -> dict[str, Any]:
    """Return sizes of the language model of a Qwen2.5-VL."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def build_qwen3_vl(vocabulary: int, layers: int = 2, width: int = 32, **tokens: int) -> nn.Module:
    """Return a Qwen3-VL language model, (B, L) tokens to (B, L, width), whose tower for images is idle."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {**_qwen_vl_text(vocabulary, layers, width), "head_dim": width // 2}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": width,
        "deepstack_visual_indexes": [0],
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
    model: nn.Module = Qwen3VLForConditionalGeneration(config)
    return model


def build_qwen3(vocabulary: int, layers: int = 2, width: int = 32) -> nn.Module:
    """Return a Qwen3 language model, (B, L) tokens to (B, L, width)."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model: nn.Module = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=width // 2,
            max_position_embeddings=1024,
        )
    )
    return model


def build_qwen_vae() -> nn.Module:
    """Return Qwen-Image's autoencoder for one frame of 32 x 32 x 3 to 8 x 8 x 4 latents."""
    from diffusers import AutoencoderKLQwenImage

    model: nn.Module = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[-0.7571, 0.1075, 0.4134, -0.2921],
        latents_std=[2.8184, 1.4541, 2.3275, 1.916],
    )
    return model


def build_vae(channels: Sequence[int], **config: Any) -> nn.Module:
    """Return 32 x 32 x 3 pictures to 8 x 8 x 4 latents.

    Args:
        channels: of the three levels, the largest pictures first.
        **config: of `AutoencoderKL`: groups of the norms, scale and shift of the latents.
    """
    from diffusers import AutoencoderKL

    model: nn.Module = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=tuple(channels),
        layers_per_block=1,
        latent_channels=4,
        sample_size=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        **config,
    )
    return model
