"""Latents in the units of the network, and in those of the decoder and encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def unscaled(latents: Tensor, config: Any) -> Tensor:
    """Return latents in a decoder's units, in float32: by channel if its config says so, else by one scale, if any.

    Args:
        latents: (B, C, ...) as the network draws them.
        config: the decoder's.
    """
    if config.get("latents_mean") is not None:
        shape = (1, -1) + (1,) * (latents.ndim - 2)
        mean, std = (latents.new_tensor(config[name]).view(shape) for name in ("latents_mean", "latents_std"))
        return latents * std + mean
    return latents / (config.get("scaling_factor") or 1.0) + (config.get("shift_factor") or 0.0)


def scaled(latents: Tensor, config: Any) -> Tensor:
    """Return latents of an encoder as the network draws them, the inverse of `unscaled`."""
    if config.get("latents_mean") is not None:
        shape = (1, -1) + (1,) * (latents.ndim - 2)
        mean, std = (latents.new_tensor(config[name]).view(shape) for name in ("latents_mean", "latents_std"))
        return (latents - mean) / std
    return (latents - (config.get("shift_factor") or 0.0)) * (config.get("scaling_factor") or 1.0)
