"""How large an image is as a JPEG: the two rewards of DDPO that need no model."""

from __future__ import annotations

import io
import math

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.media import to_pil
from reward_models.self_test import Contrast, contrast, drawing, noise

QUALITY = 95
"""Of the JPEG encoder, as in DDPO."""
LONGEST = 65_500
"""Pixels a side of a JPEG, as its library has it."""


def kilobytes(image: Tensor) -> float:
    """Return size of an image (3, H, W) uint8 as a JPEG of quality 95, in kB of 1,000 bytes."""
    buffer = io.BytesIO()
    to_pil(image).save(buffer, format="JPEG", quality=QUALITY)
    return buffer.tell() / 1000


class IncompressibilityScorer(WithoutWeights):
    """How much an image resists compression: + the size of its JPEG in kB.

    raw = bytes / 1000 of the image as a JPEG of quality 95 (Pillow, otherwise its defaults, so chroma is halved), as
    in DDPO (Black et al. 2023, arXiv:2305.13301) and Flow-GRPO. It grows with the number of pixels: compare images of
    one size. The version of Pillow's JPEG library may move it by a few bytes.

    An image with more than 65,500 pixels a side is no JPEG: it is not scored.

    Scaling: DDPO and Flow-GRPO use kB as they are here, but Flow-GRPO divides compressibility by 500; (0, 500) puts
    images of 512 x 512 pixels into [0, 0.7].
    """

    spec = ScorerSpec(
        name="jpeg_incompressibility",
        description="Size of the image as a JPEG of quality 95, in kB.",
        range=(0.0, math.inf),
        uses_prompt=False,
        scaling=(0.0, 500.0),
        citation="https://arxiv.org/abs/2305.13301",
    )
    sign = 1.0

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        height, width = batch.media.shape[-2:]
        if not (0 < height <= LONGEST and 0 < width <= LONGEST):
            why = f"a JPEG has 1 to {LONGEST:,} pixels a side, this image has {width:,} x {height:,}"
            return output_of_rows([(math.nan, {}, why)] * len(batch))
        return output_of_rows([(self.sign * kilobytes(image), {}, None) for image in batch.media])

    def contrasts(self) -> list[Contrast]:
        """Return noise is larger than a drawing, and a drawing larger than a flat image."""
        steps = [torch.full_like(noise(), 128), drawing("red", "circle"), noise()]
        pairs = list(zip(steps, steps[1:], strict=False))
        why = "fewer details make a smaller file" if self.sign < 0 else "more details make a larger file"
        ordered = [(small, large) if self.sign < 0 else (large, small) for small, large in pairs]
        return [contrast(good, bad, why) for good, bad in ordered]


class CompressibilityScorer(IncompressibilityScorer):
    """How well an image compresses: - the size of its JPEG in kB.

    raw = - bytes / 1000 of the image as a JPEG of quality 95, as in DDPO (Black et al. 2023, arXiv:2305.13301). It
    falls with the number of pixels: compare images of one size.

    Scaling: DDPO uses it raw; Flow-GRPO divides by 500, which is the scaling (0, 500): [-0.7, 0] for images of
    512 x 512 pixels.
    """

    spec = ScorerSpec(
        name="jpeg_compressibility",
        description="Minus the size of the image as a JPEG of quality 95, in kB.",
        range=(-math.inf, 0.0),
        uses_prompt=False,
        scaling=(0.0, 500.0),
        citation="https://arxiv.org/abs/2305.13301",
    )
    sign = -1.0
