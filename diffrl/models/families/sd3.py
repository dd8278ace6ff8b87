"""Stable Diffusion 3 and 3.5: two CLIP encoders, an optional T5, latents (B, C, h, w), classifier-free guidance."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning, DrawNoise
from diffrl.models.families import FAMILIES
from diffrl.models.images import uint8_from_signed
from diffrl.models.pipeline import PipelineAdapter


class SD3Adapter(PipelineAdapter):
    """A `StableDiffusion3Pipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline.
        dtype: what the transformer computes in.
        height: picture height in pixels; None takes the pipeline's own.
        width: picture width in pixels; None takes the pipeline's own.
        max_sequence_length: length of the T5 part of the conditioning, in tokens. Without a T5 encoder it is the
            number of zero tokens that are appended (the stock pipeline appends 256).
    """

    family = FAMILIES["sd3"]

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype = torch.float32,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        self._config = pipeline.transformer.config
        scale = pipeline.vae_scale_factor
        self.take_size(height, width, self._config.sample_size * scale, scale * self._config.patch_size)
        most = self._config.pos_embed_max_size * self._config.patch_size * scale
        if max(self.height, self.width) > most:
            raise ConfigError(
                f"model.height and model.width must be at most {most}, the size of this model's position table. Got "
                f"{self.height} x {self.width}. Choose a smaller size."
            )
        self._latent_shape = (self._config.in_channels, self.height // scale, self.width // scale)

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Embeddings (B, L, D) and pooled (B, P) of the prompts, and of the empty prompt for guidance."""
        with self.on_device("text_encoder") as device:
            embeds, negative, pooled, negative_pooled = self.pipeline.encode_prompt(
                prompt=list(prompts),
                prompt_2=None,
                prompt_3=None,
                device=device,
                do_classifier_free_guidance=True,
                max_sequence_length=self.max_sequence_length,
            )
        return {
            "prompt_embeds": embeds,
            "pooled": pooled,
            "negative_prompt_embeds": negative,
            "negative_pooled": negative_pooled,
        }

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Unit normal latents (B, C, h, w) float32."""
        return draw(self._latent_shape).to(self.placement.device, torch.float32)

    def sigmas(self, steps: int) -> Tensor:
        """What the pipeline's scheduler runs, its shift included (esser et al., arXiv 2403.03206, eq. 23)."""
        scheduler = copy.deepcopy(self.pipeline.scheduler)
        options: dict[str, float] = {}
        if scheduler.config.get("use_dynamic_shifting"):
            from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift

            _, height, width = self._latent_shape
            length = (height // self._config.patch_size) * (width // self._config.patch_size)
            names = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
            options["mu"] = calculate_shift(length, *(scheduler.config[name] for name in names))
        scheduler.set_timesteps(steps, **options)
        sigmas: Tensor = scheduler.sigmas.to(torch.float32)
        return sigmas

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Velocity (B, C, h, w)."""
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma * 1000.0,
            encoder_hidden_states=conditioning["prompt_embeds"],
            pooled_projections=conditioning["pooled"],
            return_dict=False,
        )[0]
        return output

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) uint8 of latents at sigma = 0."""
        config = self.pipeline.vae.config
        unscaled = latents / config.scaling_factor + config.shift_factor
        return uint8_from_signed(self.vae_output(unscaled))
