"""What adapters of picture pipelines share: sizes in whole patches, and latents that are packed into them or not."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import DrawNoise
from diffrl.models.pipeline import PipelineAdapter, require_multiple
from diffrl.models.schedulers import flow_sigmas, shifted_sigmas

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class PictureAdapter(PipelineAdapter):
    """A pipeline of pictures whose network cuts the latents (B, C, h, w) into patches itself.

    Args:
        pipeline: the diffusers pipeline.
        dtype: what the transformer computes in.
        height: picture height in pixels; None takes the pipeline's own.
        width: picture width in pixels; None takes the pipeline's own.
        max_sequence_length: text tokens of a prompt; None takes the family's default.
    """

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        scale = pipeline.vae_scale_factor
        default, patch, channels = self.latent_sizes()
        self.height, self.width = height or default * scale, width or default * scale
        self.require_size(patch * scale)
        rows, columns = self.height // scale, self.width // scale
        self.latent_shape = (channels, rows, columns)
        self.tokens = (rows // patch) * (columns // patch)

    def require_size(self, patch: int) -> None:
        """Refuse a size that the network cannot draw; `patch` is the side of a patch in pixels.

        Raises:
            ConfigError: it does not come out in whole patches.
        """
        require_multiple(self.height, self.width, patch)

    def latent_sizes(self) -> tuple[int, int, int]:
        """Return side of the pipeline's own latents, side of a patch, channels."""
        config = self.pipeline.transformer.config
        return config.sample_size, config.patch_size, config.in_channels

    def sigmas(self, steps: int) -> Tensor:
        """Return the scheduler's levels, its shift included; see `flow_sigmas`."""
        return flow_sigmas(self.pipeline.scheduler, steps, self.tokens)


class PackedPictureAdapter(PictureAdapter):
    """A pipeline of pictures whose latents come to the network as 2 x 2 patches: (B, h w / 4, 4 C)."""

    def latent_sizes(self) -> tuple[int, int, int]:
        """Return side of the pipeline's own latents, side of a patch, channels before packing."""
        return self.pipeline.default_sample_size, 2, self.pipeline.transformer.config.in_channels // 4

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Return unit normal latents, packed: (B, h w / 4, 4 C) float32."""
        return self.pack(super().init_latents(draw))

    def pack(self, latents: Tensor) -> Tensor:
        """Return (B, C, h, w), or of one frame (B, C, 1, h, w), to (B, h w / 4, 4 C)."""
        packed: Tensor = self.pipeline._pack_latents(latents, len(latents), *self.latent_shape)
        return packed

    def unpack(self, latents: Tensor) -> Tensor:
        """Return (B, h w / 4, 4 C) to (B, C, h, w)."""
        unpacked: Tensor = self.pipeline._unpack_latents(
            latents, self.height, self.width, self.pipeline.vae_scale_factor
        )
        return unpacked

    def kept(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` makes, which follows from `key`, made once.

        Pipelines make the places of tokens on the CPU: sending them with every network call would wait for the device.
        """
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[Hashable, Tensor]:
        return {}

    def sigmas(self, steps: int) -> Tensor:
        """Return evenly spaced levels, shifted by the number of picture tokens; see `shifted_sigmas`."""
        return shifted_sigmas(self.pipeline.scheduler, steps, self.tokens)
