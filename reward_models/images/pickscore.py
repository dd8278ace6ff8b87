"""PickScore: which of two images people would pick for a prompt."""

from __future__ import annotations

import torch

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_scores
from reward_models.images.clip_towers import load_clip, similarity
from reward_models.neural import dtype_of


class PickScorer:
    """CLIP ViT-H/14, finetuned on the choices in Pick-a-Pic.

        score = exp(logit_scale) <image, text> / (|image| |text|)

    Roughly 18 to 24 on generated images, reported by its users and not checked here; Flow-GRPO trains on
    score / 26. The difference of two scores of one prompt is the log-odds of the choice; scores of different prompts
    cannot be compared.

    Preprocessing on each image by PIL, as the processor of `laion/CLIP-ViT-H-14-laion2B-s32B-b79K` says: shorter
    side to 224, bicubic; centre crop; CLIP's mean and spread. Prompts are cut at 77 tokens, the last of which stays
    the end token.

    In bfloat16 the towers round, the scale and the cosine do not: they are taken in float32.

    Source: Kirstain et al. 2023, arXiv:2305.01569; github.com/yuvalkirstain/PickScore.
    Licences: code MIT; the weights' card names none, the base model's is MIT. The published weights were not
    available here: checked is the arithmetic, on small random weights in their layout.

    Args:
        model: directory or hub id.
        processor: directory or hub id of tokenizer and preprocessor_config.json.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        RewardError: weights or processor cannot be had, or do not fit.
    """

    spec = ScorerSpec(
        name="pickscore",
        description="Human preference among images of one prompt, learnt from the choices in Pick-a-Pic.",
        range=(float("-inf"), float("inf")),
        scaling=(0.0, 26.0),
        memory="3.9 GB float32, 2.0 GB in half precision",
        weights="yuvalkirstain/PickScore_v1",
        code_license="MIT",
        weights_license="unknown: the card names none",
        citation="Kirstain et al. 2023, arXiv:2305.01569",
        batch_size=32,
    )

    def __init__(
        self,
        *,
        model: str = "yuvalkirstain/PickScore_v1",
        processor: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        dtype: str = "float32",
    ) -> None:
        self.towers = load_clip(model, "pickscore", dtype_of(dtype), processor)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Scores of the batch."""
        self.spec.require(batch)
        return output_of_scores(self.towers.scale * similarity(self.towers, batch))

    def to(self, device: str | torch.device) -> PickScorer:
        """Move the model; returns itself."""
        self.towers.to(device)
        return self
