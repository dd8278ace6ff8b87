"""How much a sample differs from the others of its group: what a policy loses when it collapses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec
from reward_models.common.errors import RewardError
from reward_models.images.clip_towers import TransformersClip, load_clip, unit
from reward_models.neural import dtype_of, inference
from reward_models.self_test import Contrast, contrast, drawing

CLIP = "openai/clip-vit-base-patch32"
SIDE = 32
"""Of the reduced images that pixels are compared in."""
PIECE = 2**20
"""Values that are floats at one time, or those of one image: a group of clips is large already as bytes."""


def pixel_features(frames: Tensor) -> Tensor:
    """Return images (N, 3, H, W) uint8 reduced to 32 x 32, as (N, 3072) float32 in [0, 1].

    A reduced pixel is the mean of the pixels floor(i H / 32) .. ceil((i + 1) H / 32) - 1, and so across: adaptive
    average pooling, which is `area` resizing wherever 32 divides the side. Floats are made of a few images at a time.
    """
    features = torch.empty(len(frames), 3, SIDE, SIDE, device=frames.device)
    most = max(1, PIECE // max(1, frames[:1].numel()))
    for first in range(0, len(frames), most):
        piece = frames[first : first + most].float().div_(255)
        features[first : first + most] = F.adaptive_avg_pool2d(piece, SIDE)
    return features.flatten(1)


def pixel_distances(features: Tensor) -> Tensor:
    """Return Root-mean-square differences between features (N, D): (N, N)."""
    exact = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    return exact / math.sqrt(features.shape[1])


def cosine_distances(embeddings: Tensor) -> Tensor:
    """Return 1 - cosine between unit embeddings (N, F, D) of the same frame, averaged over frames: (N, N)."""
    flat = embeddings.flatten(1)
    return (1 - flat @ flat.T / embeddings.shape[1]).clamp(min=0)


class DiversityScorer:
    """Diversity: the mean distance of a sample to the others of its group.

    raw = mean over the other samples of the group of a distance:

    - features "pixels": root-mean-square difference of the images reduced to 32 x 32 (`pixel_features`), channels in
      [0, 1]; of clips over all frames. 0 for copies, 1 for black against white.
    - features "clip": 1 - cosine of CLIP's projected image embeddings, preprocessed as the model's directory says;
      of clips frame by frame, then averaged. It goes by meaning rather than by layout.

    A sample without another in its group cannot be judged and is NaN. The score depends on the group by design; groups
    must be whole in a batch.

    Args:
        features: "pixels" or "clip".
        model: for "clip", a directory or hub id with a CLIP in transformers' format; default OpenAI's ViT-B/32.
        dtype: of CLIP's weights: "float32", "bfloat16" or "float16".
    """

    spec = ScorerSpec(
        name="diversity",
        description="Mean distance of a sample to the others of its group, in pixels or in CLIP's embeddings.",
        range=(0.0, 1.0),
        media=("image", "video"),
        uses_prompt=False,
        scope="group",
        scaling=(0.0, 0.5),
    )

    def __init__(self, features: str = "pixels", model: str | None = None, dtype: str = "float32") -> None:
        if features not in ("pixels", "clip"):
            raise RewardError(f"features of diversity must be 'pixels' or 'clip'. Got {features!r}.")
        if features == "pixels" and model is not None:
            raise RewardError(
                f"Only features='clip' of diversity take a model. Got features='pixels', model={model!r}."
            )
        self.clip: TransformersClip | None = None
        self._distances: Callable[[Tensor], Tensor] = self._of_pixels
        if features == "clip":
            self._load(model or CLIP, dtype_of(dtype))
            self._distances = self._of_clip

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of whole groups."""
        self.spec.require(batch)
        frames = batch.media if batch.media.ndim == 5 else batch.media[:, None]  # (B, F, 3, H, W)
        raw = torch.full((len(batch),), math.nan)
        errors: list[str | None] = [None] * len(batch)
        for rows in batch.group_rows():
            if len(rows) == 1 or frames.shape[1] == 0:
                why = "the clip has no frames" if len(rows) > 1 else "its group has no other sample to differ from"
                for row in rows:
                    errors[row] = why
                continue
            distances = self._distances(frames[rows]).float().cpu()
            raw[rows] = (distances.sum(1) - distances.diagonal()) / (len(rows) - 1)
        ok = torch.isfinite(raw)
        errors = [
            error if good or error else "its features are not finite" for good, error in zip(ok, errors, strict=True)
        ]
        return RewardOutput(raw.masked_fill(~ok, math.nan), ok, errors)

    def to(self, device: str | torch.device) -> DiversityScorer:
        """Move CLIP; without it there is nothing to move."""
        if self.clip is not None:
            self.clip.to(device)
        return self

    def contrasts(self) -> list[Contrast]:
        """Return images that differ from their mirror image, against ones that hardly do; a group is the two."""
        symmetric = drawing("red", "circle")
        return [
            contrast(drawing(color, shape, x=0.25), symmetric, why)
            for color, shape in (("black", "square"), ("blue", "triangle"))
            for why in [f"its {shape} is on the other side in the other sample of the group"]
        ]

    def _of_pixels(self, frames: Tensor) -> Tensor:
        reduced = pixel_features(frames.flatten(0, 1)).reshape(len(frames), -1)
        return pixel_distances(reduced)

    def _of_clip(self, frames: Tensor) -> Tensor:
        assert self.clip is not None
        with inference(self.clip.device):
            embeddings = unit(self.clip.images(frames.flatten(0, 1))).reshape(*frames.shape[:2], -1)
        return cosine_distances(embeddings)

    def _load(self, model: str, dtype: torch.dtype) -> None:
        self.clip = load_clip(model, self.spec.name, dtype, text=False)
        self.spec = replace(
            self.spec,
            description="Mean distance of a sample to the others of its group in CLIP's embeddings: 1 - cosine.",
            range=(0.0, 2.0),
            memory="0.4 GB float32 (ViT-B/32)",
            weights=model,
            weights_license="MIT for OpenAI's CLIP; of another model its own",
            citation="https://arxiv.org/abs/2103.00020",
        )
