"""FLUX.1: CLIP and T5, packed latents (B, tokens, 64), guidance as an input, a shift that depends on the resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffrl.models.adapter import Conditioning, DrawNoise
from diffrl.models.families import FAMILIES
from diffrl.models.images import uint8_from_signed
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.schedulers import shifted_sigmas


class FluxAdapter(PipelineAdapter):
    """A `FluxPipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline.
        dtype: what the transformer computes in.
        height: picture height in pixels; None takes the pipeline's own.
        width: picture width in pixels; None takes the pipeline's own.
        max_sequence_length: T5 tokens of a prompt.
    """

    family = FAMILIES["flux"]

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype = torch.float32,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        scale = pipeline.vae_scale_factor
        self.take_size(height, width, pipeline.default_sample_size * scale, 2 * scale)
        self._channels = pipeline.transformer.config.in_channels // 4
        self._rows, self._columns = self.height // scale, self.width // scale

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """T5 embeddings (B, L, D) and CLIP's pooled (B, P)."""
        with self.on_device("text_encoder") as device:
            embeds, pooled, _ = self.pipeline.encode_prompt(
                prompt=list(prompts), prompt_2=None, device=device, max_sequence_length=self.max_sequence_length
            )
        return {"prompt_embeds": embeds, "pooled": pooled}

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Unit normal latents, 2 x 2 patches packed: (B, h w / 4, 4 C) float32."""
        noise = draw((self._channels, self._rows, self._columns))
        packed: Tensor = self.pipeline._pack_latents(noise, len(noise), self._channels, self._rows, self._columns)
        return packed.to(self.placement.device, torch.float32)

    def sigmas(self, steps: int) -> Tensor:
        """Evenly spaced levels, shifted by the number of picture tokens; see `shifted_sigmas`."""
        return shifted_sigmas(self.pipeline.scheduler, steps, self._rows * self._columns // 4)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Velocity (B, h w / 4, 4 C); a network without guidance embedding takes no notice of the scale."""
        embeds, device = conditioning["prompt_embeds"], latents.device
        guided = self.pipeline.transformer.config.guidance_embeds
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma,
            guidance=torch.full_like(sigma, guidance_scale) if guided else None,
            pooled_projections=conditioning["pooled"],
            encoder_hidden_states=embeds,
            txt_ids=torch.zeros(embeds.shape[1], 3, device=device, dtype=latents.dtype),
            img_ids=self.pipeline._prepare_latent_image_ids(
                len(latents), self._rows // 2, self._columns // 2, device, latents.dtype
            ),
            return_dict=False,
        )[0]
        return output

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) uint8 of packed latents at sigma = 0."""
        config = self.pipeline.vae.config
        unpacked = self.pipeline._unpack_latents(latents, self.height, self.width, self.pipeline.vae_scale_factor)
        unscaled = unpacked / config.scaling_factor + config.shift_factor
        return uint8_from_signed(self.vae_output(unscaled))
