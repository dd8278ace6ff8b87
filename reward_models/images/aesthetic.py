"""LAION's aesthetic predictor, version 2 ("improved")."""

from __future__ import annotations

import numpy as np
import torch

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_scores
from reward_models.common.errors import RewardError
from reward_models.images.affine_head import AffineHead
from reward_models.images.clip_preprocess import CenterCrop
from reward_models.images.clip_towers import load_clip, unit
from reward_models.neural import dtype_of, find_file, inference, load_strict, read_state
from reward_models.self_test import SIDE, Contrast, contrast, noise

FILE = "sac+logos+ava1-l14-linearMSE.pth"
ADDRESS = (
    "https://github.com/christophschuhmann/improved-aesthetic-predictor/raw/main/sac%2Blogos%2Bava1-l14-linearMSE.pth"
)


class AestheticScorer:
    """How pleasing an image is, whatever its prompt: an affine map of its CLIP embedding.

        score = head(image / |image|),   image = OpenAI CLIP ViT-L/14's projected embedding

    The head has five linear layers without activations, fitted to people's ratings from 1 to 10 (SAC, Logos, AVA).
    Mostly 4 to 7, unbounded in principle; used as it is or divided by 10.

    Preprocessing is OpenAI's, on each image by PIL: shorter side to 224, bicubic; centre crop, rounded as
    torchvision rounds; CLIP's mean and spread. OpenAI's models are trained with QuickGELU: a conversion of CLIP
    whose configuration says otherwise is refused. The original embeds in float16 on a GPU; the head is float32 here
    and there.

    Source: github.com/christophschuhmann/improved-aesthetic-predictor.
    Licences: predictor Apache-2.0; OpenAI's CLIP MIT as its repository is, its card on the hub names none. The
    published weights were not available here: checked is the arithmetic, on small random weights in their layout.

    Args:
        checkpoint: the file sac+logos+ava1-l14-linearMSE.pth, a directory with it, or a hub repository with it. It
            is published on GitHub, so there is no default.
        model: directory or hub id of CLIP ViT-L/14, in the transformers layout.
        dtype: "float32", "bfloat16" or "float16" inside CLIP.

    Raises:
        RewardError: weights cannot be had or do not fit.
    """

    spec = ScorerSpec(
        name="aesthetic",
        description="How pleasing the image is by people's ratings from 1 to 10, whatever the prompt.",
        range=(float("-inf"), float("inf")),
        uses_prompt=False,
        scaling=(0.0, 10.0),
        memory="1.2 GB float32, 0.6 GB in half precision (CLIP's image tower)",
        weights=ADDRESS,
        weights_license="Apache-2.0 (predictor), MIT (OpenAI's CLIP)",
        citation="Schuhmann 2022, github.com/christophschuhmann/improved-aesthetic-predictor",
        batch_size=32,
    )

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        model: str = "openai/clip-vit-large-patch14",
        dtype: str = "float32",
    ) -> None:
        kind = dtype_of(dtype)
        if checkpoint is None:
            raise RewardError(
                f"The reward aesthetic needs checkpoint=PATH of {FILE}. Got none. It is a file on GitHub: "
                f"curl -L -o '{FILE}' '{ADDRESS}'"
            )
        path = find_file(checkpoint, FILE, "aesthetic")
        self.towers = load_clip(model, "aesthetic", kind, text=False)
        config = self.towers.model.config
        if config.vision_config.hidden_act != "quick_gelu":
            raise RewardError(
                "The aesthetic predictor works on OpenAI's CLIP ViT-L/14, whose activation is quick_gelu. "
                f"{model} has {config.vision_config.hidden_act}. Use openai/clip-vit-large-patch14."
            )
        self.towers.crop = CenterCrop(self.towers.crop.side)
        self.head = AffineHead(config.projection_dim).eval()
        load_strict(self.head, read_state(path, "aesthetic"), "aesthetic", source=str(path))

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Scores of the batch."""
        self.spec.require(batch)
        with inference(self.towers.device):
            return output_of_scores(self.head(unit(self.towers.images(batch.media))))

    def to(self, device: str | torch.device) -> AestheticScorer:
        """Move the model; returns itself."""
        self.towers.to(device)
        self.head.to(device)
        return self

    def contrasts(self) -> list[Contrast]:
        """Return a sunset over hills against noise; that the published weights prefer it was not tried here."""
        return [contrast(_sunset(), noise(), "it is a sunset, and the other is noise")]


def _sunset() -> torch.Tensor:
    """Return a low sun in an orange sky over dark hills, (3, SIDE, SIDE) uint8."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    sky = (1 - y)[..., None] * np.array([60, 50, 120]) + y[..., None] * np.array([255, 150, 60])
    glow = np.exp(-((x - 0.6) ** 2 + (y - 0.55) ** 2) / 0.02)[..., None] * np.array([120, 110, 60])
    hills = y > 0.7 + 0.05 * np.sin(9 * x) + 0.03 * np.sin(23 * x + 1)
    image = np.where(hills[..., None], np.array([25, 20, 35]), sky + glow).clip(0, 255).round().astype(np.uint8)
    return torch.from_numpy(image).permute(2, 0, 1).contiguous()
