"""Pointwise (1 x 1) convolutions as linear layers over the channels, so that they can be quantised.

SANA keeps about half of its parameters in them (`GLUMBConv.conv_inverted`, `conv_point`).
"""

from __future__ import annotations

from torch import Tensor, nn

from diffrl.precision.layout import row_major


class Pointwise(nn.Module):
    """A convolution's place, taken by a linear layer: (B, K, H, W) to (B, N, H, W).

    Args:
        linear: (..., K) to (..., N).
    """

    def __init__(self, linear: nn.Module):
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Channels last, through the linear layer, and back."""
        y: Tensor = self.linear(row_major(x.movedim(1, -1)))
        return y.movedim(-1, 1).contiguous()


def as_linear(layer: nn.Module) -> nn.Linear | None:
    """The linear layer that a 2-D convolution amounts to, sizes alone (meta device); None if it sees neighbours."""
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1:
        return None
    if (layer.kernel_size, layer.stride) != ((1, 1), (1, 1)) or layer.padding not in ((0, 0), "valid", "same"):
        return None
    return nn.Linear(
        layer.in_channels, layer.out_channels, layer.bias is not None, device="meta", dtype=layer.weight.dtype
    )
