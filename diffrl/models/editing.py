"""What adapters share that edit an image whose packed latents pass through the network behind those that are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning
from diffrl.models.picture_adapters import PackedPictureAdapter

if TYPE_CHECKING:
    from torch import Tensor


class PackedEditingAdapter(PackedPictureAdapter):
    """Goes before the family's adapter among the bases of a class, and hands that one's `predict` the joined latents.

    An image to edit is scaled to the size that is drawn.
    """

    def encode_edits(self, prompts: Sequence[str], sources: Sequence[Tensor]) -> Conditioning:
        """Return what `encode_words` gives, and the sources' latents, packed: (B, h w / 4, 4 C) in the network's dtype.

        Args:
            prompts: B of them.
            sources: B images (3, H, W) uint8 RGB, of the ratio of sides that is drawn.

        Raises:
            ConfigError: one has another ratio.
        """
        import torch

        latents = torch.cat([self._source_latents(source) for source in sources])
        return {**self.encode_words(prompts, sources), "source": latents}

    def encode_words(self, prompts: Sequence[str], sources: Sequence[Tensor]) -> Conditioning:
        """Encode prompts; a family whose text encoder sees images as well overrides it."""
        return self.encode_prompts(prompts)

    def source_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of a source's packed latents."""
        return {"source": (self.tokens, self.pipeline.transformer.config["in_channels"])}

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, h w / 4, 4 C) of the image that is drawn."""
        import torch

        source = conditioning.get("source")
        joined = latents if source is None else torch.cat([latents, source.to(latents.dtype)], dim=1)
        return super().predict(joined, sigma, conditioning, guidance_scale)[:, : latents.shape[1]]

    def _source_latents(self, source: Tensor) -> Tensor:
        """Return the mode of the encoder's distribution, normalised as the stock pipeline does; (1, h w / 4, 4 C)."""
        from diffrl.data.sources import require_ratio
        from reward_models.media import to_pil

        require_ratio((source.shape[1], source.shape[2]), (self.height, self.width), "An image")
        stock = self.pipeline.image_processor
        scaled = stock.resize(to_pil(source), self.height, self.width)
        with self.on_device("vae") as device:
            pixels = stock.preprocess(scaled, self.height, self.width).to(device, self.pipeline.vae.dtype)
            latents: Tensor = self.pipeline._encode_vae_image(self.encoder_input(pixels), None)
        packed: Tensor = self.pipeline._pack_latents(latents, 1, *self.latent_shape)
        return packed.to(self.dtype)

    def encoder_input(self, pixels: Tensor) -> Tensor:
        """Return an image (1, 3, H, W) in [-1, 1] as the encoder takes it: here, as it is."""
        return pixels
