"""The head that LAION's aesthetic predictor and ImageReward share: five linear layers without anything between."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (1024, 128, 64, 16, 1)


class AffineHead(nn.Module):
    """Embeddings (B, width) to scores (B,), in float32.

    Linear layers of widths 1024, 128, 64, 16 and 1. The published models have dropout where `Identity` stands here,
    which does nothing in use, and no activation: the whole is one affine map.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        linear = [nn.Linear(i, o) for i, o in zip((width, *WIDTHS[:-1]), WIDTHS, strict=True)]
        gap = nn.Identity
        self.layers = nn.Sequential(linear[0], gap(), linear[1], gap(), linear[2], gap(), *linear[3:])

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return scores (B,) of embeddings (B, width) of any dtype."""
        scores: Tensor = self.layers(embeddings.to(torch.float32))
        return scores.squeeze(-1)
