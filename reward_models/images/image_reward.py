"""ImageReward: a BLIP model that reads prompt and image together and says how well people would like it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_scores
from reward_models.common.errors import RewardError
from reward_models.images.affine_head import AffineHead
from reward_models.images.clip_preprocess import CenterCrop
from reward_models.neural import dtype_of, find_file, inference, load_strict, pretrained, read_state, shared

FILE = "ImageReward.pt"
MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Of the head's output over the training set."""
MAX_TOKENS = 35

VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,  # transformers' default is another
}
TEXT = {
    "vocab_size": 30524,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,  # transformers' default of 8 would load as well, and score wrongly
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}

RENAMED = (
    (r"^blip\.visual_encoder\.cls_token$", "vision.embeddings.class_embedding"),
    (r"^blip\.visual_encoder\.pos_embed$", "vision.embeddings.position_embedding"),
    (r"^blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"^blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
    (r"^blip\.visual_encoder\.blocks\.(\d+)\.norm([12])\.", r"vision.encoder.layers.\1.layer_norm\2."),
    (r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.qkv\.", r"vision.encoder.layers.\1.self_attn.qkv."),
    (r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision.encoder.layers.\1.self_attn.projection."),
    (r"^blip\.visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision.encoder.layers.\1.mlp."),
    (r"^blip\.text_encoder\.", "text."),
    (r"^mlp\.", "head."),
)
"""The published names and ours, which are those of transformers' BLIP."""

UNUSED = (
    "text.embeddings.position_ids",
    *(f"blip.{x}_proj.{y}" for x in ("vision", "text") for y in ("weight", "bias")),
)
"""Tensors of the published class that scoring does not need."""


class ImageRewardScorer:
    """BLIP's ViT-L/16 and a BERT that attends to it, finetuned on human rankings of images of one prompt.

        score = (head(h) - 0.16717363) / 1.03333950

    h is the first token's last hidden state of BERT, reading the prompt with cross-attention to the image; the head
    has five linear layers without activations. 0 is the average over the training set and 1 its spread: 98% of
    Stable Diffusion 1.4's images are between -2 and 2, says the repository's issue 5; UniRL trains on
    (score + 2) / 4. Scores of different prompts cannot be compared.

    Preprocessing on each image by PIL: shorter side to 224, bicubic; centre crop, rounded as torchvision rounds;
    CLIP's mean and spread. Prompts are lower-cased, padded and cut to 35 tokens, the last of which stays the end
    token. The head computes in float32 whatever the dtype.

    The package `image-reward` does not run on today's transformers, whose own BLIP classes compute the same: all
    weights are loaded under new names, strictly. Only BERT's position numbers and the two contrastive projections,
    which have no part in the score, may be left over.

    Source: Xu et al. 2023, arXiv:2304.05977; github.com/THUDM/ImageReward.
    Licences: code and weights Apache-2.0. The published weights were not available here: checked is the arithmetic,
    on small random weights in their layout.

    Args:
        checkpoint: the file, the directory it is in, or the hub repository.
        tokenizer: directory or hub id of BERT's tokenizer.
        config: sizes that differ from the published model's, {"vision": {...}, "text": {...}}, in the names of
            transformers' BlipVisionConfig and BlipTextConfig.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        RewardError: unknown options, or weights or tokenizer cannot be had or do not fit.
    """

    spec = ScorerSpec(
        name="image_reward",
        description="How well people would like the image for its prompt, learnt from rankings.",
        range=(float("-inf"), float("inf")),
        scaling=(-2.0, 4.0),
        memory="1.8 GB float32, 0.9 GB in half precision",
        weights="THUDM/ImageReward",
        weights_license="Apache-2.0",
        citation="Xu et al. 2023, arXiv:2304.05977",
        batch_size=32,
    )

    def __init__(
        self,
        *,
        checkpoint: str = "THUDM/ImageReward",
        tokenizer: str = "google-bert/bert-base-uncased",
        config: Mapping[str, Mapping[str, Any]] | None = None,
        dtype: str = "float32",
    ) -> None:
        from transformers import AutoTokenizer

        self.dtype, self.device = dtype_of(dtype), torch.device("cpu")
        path = find_file(checkpoint, FILE, "image_reward")
        sizes = _sizes(config or {})
        key = ("image_reward", str(path), repr([sorted(part.items()) for part in sizes]), self.dtype)
        self.model: _Blip = shared(key, lambda: _loaded(config or {}, path, self.dtype))
        self.tokenizer = pretrained(AutoTokenizer, tokenizer, "image_reward")
        known = self.model.text.config.vocab_size
        if len(self.tokenizer) > known:
            raise RewardError(
                f"The tokenizer must be bert-base-uncased's. That of {tokenizer} has {len(self.tokenizer)} tokens, the "
                f"model knows {known}. Give the model's own."
            )
        self.crop = CenterCrop(sizes[0]["image_size"])

    text_limit = MAX_TOKENS

    def text_length(self, prompt: str) -> int:
        """Return the tokens of a prompt, its start and end included."""
        return len(self.tokenizer(prompt, truncation=False, verbose=False)["input_ids"])

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Scores of the batch."""
        self.spec.require(batch)
        tokens = self.tokenizer(
            list(batch.prompts), padding="max_length", truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        ).to(self.device)
        with inference(self.device):
            pixels = self.crop(batch.media).to(self.device, self.dtype)
            scores = self.model(pixels, tokens.input_ids, tokens.attention_mask)
        return output_of_scores((scores - MEAN) / STD)

    def to(self, device: str | torch.device) -> ImageRewardScorer:
        """Move the model; returns itself."""
        self.device = torch.device(device)
        self.model.to(self.device)
        return self


class _Blip(nn.Module):
    """Image and prompt to the head's output (B,), in the parts of transformers' BLIP."""

    def __init__(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        from transformers import BlipTextConfig, BlipVisionConfig
        from transformers.models.blip.modeling_blip import BlipVisionModel
        from transformers.models.blip.modeling_blip_text import BlipTextModel

        super().__init__()
        vision, text = _sizes(config)
        self.vision = BlipVisionModel(BlipVisionConfig(**vision))
        # Cross-attention exists only where the configuration says is_decoder; calls say that it is none.
        self.text = BlipTextModel(
            BlipTextConfig(**text, encoder_hidden_size=vision["hidden_size"], is_decoder=True), add_pooling_layer=False
        )
        self.head = AffineHead(text["hidden_size"])

    def forward(self, pixels: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return (B, 3, side, side), (B, L) and (B, L) to (B,)."""
        image = self.vision(pixel_values=pixels, return_dict=True).last_hidden_state
        hidden = self.text(
            input_ids=tokens, attention_mask=mask, encoder_hidden_states=image, is_decoder=False, return_dict=True
        ).last_hidden_state
        scores: Tensor = self.head(hidden[:, 0])
        return scores


def _loaded(config: Mapping[str, Mapping[str, Any]], path: Path, dtype: torch.dtype) -> _Blip:
    """Return the model with a file's weights; its head in float32."""
    model = _Blip(config).eval()
    state = {_renamed(key): value for key, value in read_state(path, "image_reward").items()}
    load_strict(model, state, "image_reward", UNUSED, str(path))
    model.to(dtype)
    model.head.float()
    return model


def _sizes(config: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the published sizes with those of `config` in their place."""
    published: dict[str, dict[str, Any]] = {"vision": VISION, "text": TEXT}
    for part, sizes in config.items():
        unknown = [part] if part not in published else sorted(set(sizes) - set(published[part]))
        if unknown:
            raise RewardError(
                "config holds 'vision' with " + ", ".join(VISION) + "; and 'text' with " + ", ".join(TEXT) + ". "
                f"Got {', '.join(unknown)}."
            )
    return VISION | dict(config.get("vision", {})), TEXT | dict(config.get("text", {}))


def _renamed(key: str) -> str:
    for pattern, name in RENAMED:
        new, count = re.subn(pattern, name, key)
        if count:
            return new
    return key
