"""Sharpness, contrast and colourfulness: numbers of the pixels alone, for watching a training more than for driving it.

Values are of the stored (gamma-encoded) sRGB pixels, never linearised, as in the sources. Luma is that of ITU-R BT.601,
0.299 R + 0.587 G + 0.114 B, and is not rounded. Variances and standard deviations divide by the number of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows, output_of_scores
from reward_models.self_test import Contrast, contrast, drawing, noise

LUMA = (0.299, 0.587, 0.114)

PIECE = 2**21
"""Values of images that are measured at once."""


def luma_of(images: Tensor) -> Tensor:
    """Return luma (B, H, W) in [0, 255], float32, of uint8 images (B, 3, H, W)."""
    red, green, blue = images.float().unbind(1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def laplacian_variance(images: Tensor) -> Tensor:
    """Return variance of the four-neighbour Laplacian of the luma, over the pixels that have all four neighbours.

    Laplacian at (y, x): Y(y-1, x) + Y(y+1, x) + Y(y, x-1) + Y(y, x+1) - 4 Y(y, x).

    Args:
        images: (B, 3, H, W) uint8 with H, W >= 3.

    Returns:
        (B,) float32, in squared grey levels.
    """
    luma = luma_of(images)
    middle = luma[:, 1:-1, 1:-1]
    around = luma[:, :-2, 1:-1] + luma[:, 2:, 1:-1] + luma[:, 1:-1, :-2] + luma[:, 1:-1, 2:]
    return (around - 4 * middle).flatten(1).var(dim=1, correction=0)


def rmscontrast(images: Tensor) -> Tensor:
    """Return standard deviation of the luma in [0, 1] of images (B, 3, H, W) uint8, (B,) float32."""
    return (luma_of(images) / 255).flatten(1).std(dim=1, correction=0)


def colourfulness(images: Tensor) -> Tensor:
    """Return colourfulness M(3) of images (B, 3, H, W) uint8, (B,) float32.

    With rg = R - G and yb = (R + G) / 2 - B, channels in [0, 255]:
    M = sqrt(var(rg) + var(yb)) + 0.3 sqrt(mean(rg)^2 + mean(yb)^2).
    """
    red, green, blue = images.float().flatten(2).unbind(1)
    opponents = torch.stack([red - green, (red + green) / 2 - blue])  # (2, B, pixels)
    spread = opponents.var(dim=2, correction=0).sum(0).sqrt()
    return spread + 0.3 * opponents.mean(dim=2).square().sum(0).sqrt()


def in_pieces(measure: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Measure images (B, 3, H, W) a few at a time, (B,).

    Temporaries of a whole batch in float32 are gigabytes, which the system hands out and takes back page by page.
    """
    return torch.cat([measure(part) for part in images.split(max(1, PIECE // images[0].numel()))])


class _PixelScorer(WithoutWeights):
    """Measures each image on its own."""

    spec: ScorerSpec
    measure: Callable[[Tensor], Tensor]

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        return output_of_scores(in_pieces(self.measure, batch.media))


class SharpnessScorer(_PixelScorer):
    """Sharpness: the variance of the Laplacian of the luma.

    raw = variance of Y(y-1, x) + Y(y+1, x) + Y(y, x-1) + Y(y, x+1) - 4 Y(y, x) over the inner pixels, Y the BT.601 luma
    in [0, 255] (Pech-Pacheco et al. 2000, "Diatom autofocusing in brightfield microscopy"). The same kernel as
    OpenCV's `Laplacian` with ksize=1, whose usual recipe also rounds the luma and mirrors at the border.

    Noise is sharp, and so is every image that is made smaller: compare images of one size, and watch it rather than
    reward it. Flat images score 0, blurred photographs below 100, sharp ones hundreds to thousands.
    """

    spec = ScorerSpec(
        name="sharpness",
        description="Variance of the Laplacian of the luma, in squared grey levels.",
        range=(0.0, math.inf),
        uses_prompt=False,
        scaling=(0.0, 1000.0),
        citation="https://doi.org/10.1109/ICPR.2000.903548",
    )
    measure = staticmethod(laplacian_variance)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch of images; below 3 x 3 pixels there is no Laplacian, and the score is NaN.

        Raises:
            RewardError: the media are videos.
        """
        self.spec.require(batch)
        height, width = batch.media.shape[-2:]
        if min(height, width) < 3:
            error = f"an image of {width} x {height} pixels has no inner pixels to measure sharpness at"
            return output_of_rows([(math.nan, {}, error)] * len(batch))
        return super().__call__(batch)

    def contrasts(self) -> list[Contrast]:
        """Return a drawing against the same one blurred, and against a flat image."""
        sharp = drawing("red", "square")
        blurred = torch.nn.functional.avg_pool2d(sharp.float(), 9, 1, 4, count_include_pad=False).round().byte()
        return [
            contrast(sharp, blurred, "its edges are sharper"),
            contrast(sharp, torch.full_like(sharp, 128), "it has edges at all"),
        ]


class ContrastScorer(_PixelScorer):
    """Root-mean-square contrast: the standard deviation of the luma.

    raw = standard deviation of the BT.601 luma in [0, 1] over all pixels (Peli 1990, "Contrast in complex images"); 0
    for a flat image, 0.5 for one that is half black and half white.
    """

    spec = ScorerSpec(
        name="contrast",
        description="Standard deviation of the luma in [0, 1].",
        range=(0.0, 0.5),
        uses_prompt=False,
        scaling=(0.0, 0.5),
        citation="https://doi.org/10.1364/JOSAA.7.002032",
    )

    measure = staticmethod(rmscontrast)

    def contrasts(self) -> list[Contrast]:
        """Return a dark shape on light ground against a light one, and against a flat image."""
        dark = drawing("black", "square")
        return [
            contrast(dark, drawing("yellow", "square"), "black stands out more from light grey than yellow does"),
            contrast(dark, torch.full_like(dark, 128), "a flat image has no contrast"),
        ]


class ColourfulnessScorer(_PixelScorer):
    """Colourfulness as people see it, after Hasler and Süsstrunk (2003).

    raw = sqrt(var(rg) + var(yb)) + 0.3 sqrt(mean(rg)^2 + mean(yb)^2) with rg = R - G, yb = (R + G) / 2 - B and channels
    in [0, 255]: the paper's M(3). In their scale about 0 is not colourful, 15 slightly, 33 moderately, 45 averagely, 59
    quite, 82 highly and 109 extremely so (numbers from the paper's table).
    """

    spec = ScorerSpec(
        name="colourfulness",
        description="Colourfulness of Hasler and Süsstrunk: spread and mean of the opponent colours.",
        range=(0.0, math.inf),
        uses_prompt=False,
        scaling=(0.0, 100.0),
        citation="https://doi.org/10.1117/12.477378",
    )
    measure = staticmethod(colourfulness)

    def contrasts(self) -> list[Contrast]:
        """Return coloured images against grey ones."""
        red, coloured = drawing("red", "circle"), noise()
        return [
            contrast(red, drawing("black", "circle"), "red is a colour and black is none"),
            contrast(coloured, coloured[:1].expand(3, -1, -1).contiguous(), "grey noise has no colour"),
        ]
