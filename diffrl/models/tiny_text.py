"""Tokenizers and text encoders of the tiny pipelines that read words; see `tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


def build_word_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer in which each of `words` is one token and any other word is unknown; ends with `</s>`."""
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
    """A one-layer T5 encoder, (B, L) tokens to (B, L, width)."""
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
