"""Stable Diffusion 3 and 3.5: two CLIP encoders, an optional T5, latents (B, C, h, w), classifier-free guidance."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning, DrawNoise, device_of
from diffrl.models.images import uint8_from_signed


class SD3Adapter:
    """A `StableDiffusion3Pipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline; its components are used, not copied.
        dtype: what the transformer computes in. Trainable weights stay float32; below float32 it runs under autocast.
        height: picture height in pixels; None takes the pipeline's own.
        width: picture width in pixels; None takes the pipeline's own.
        max_sequence_length: length of the T5 part of the conditioning, in tokens. Without a T5 encoder it is the
            number of zero tokens that are appended (the stock pipeline appends 256).
    """

    pipeline_class = "StableDiffusion3Pipeline"

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype = torch.float32,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int = 256,
    ):
        self.pipeline = pipeline
        self.transformer: nn.Module = pipeline.transformer
        self.dtype = dtype
        self.max_sequence_length = max_sequence_length
        self._config = pipeline.transformer.config
        scale = pipeline.vae_scale_factor
        default = self._config.sample_size * scale
        self.height, self.width = height or default, width or default
        multiple = scale * self._config.patch_size
        if self.height % multiple or self.width % multiple:
            raise ConfigError(
                f"model.height and model.width must be multiples of {multiple}. Got {self.height} x {self.width}."
            )
        self._latent_shape = (self._config.in_channels, self.height // scale, self.width // scale)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        revision: str | None = None,
        **options: Any,
    ) -> SD3Adapter:
        """Load a diffusers directory or hub id; frozen parts in `dtype`, everything in eval mode, nothing trainable."""
        from diffusers import StableDiffusion3Pipeline
        from diffusers.utils.logging import disable_progress_bar
        from transformers.utils.logging import disable_progress_bar as disable_transformers_progress_bar

        disable_progress_bar()
        disable_transformers_progress_bar()
        pipeline = StableDiffusion3Pipeline.from_pretrained(str(path), dtype=dtype, revision=revision)
        pipeline.to(device)
        pipeline.set_progress_bar_config(disable=True)
        for component in pipeline.components.values():
            if isinstance(component, nn.Module):
                component.requires_grad_(False).eval()
        return cls(pipeline, dtype=dtype, **options)

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Embeddings (B, L, D) and pooled (B, P) of the prompts, and of the empty prompt for guidance."""
        embeds, negative, pooled, negative_pooled = self.pipeline.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            prompt_3=None,
            device=device_of(self.transformer),
            do_classifier_free_guidance=True,
            max_sequence_length=self.max_sequence_length,
        )
        return {
            "prompt_embeds": embeds,
            "pooled": pooled,
            "negative_embeds": negative,
            "negative_pooled": negative_pooled,
        }

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Unit normal latents (B, C, h, w) float32."""
        return draw(self._latent_shape).to(device_of(self.transformer), torch.float32)

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

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Velocity (B, C, h, w) float32; a guidance_scale above 1 evaluates the empty prompt too, as the stock does."""
        embeds, pooled = conditioning["prompt_embeds"], conditioning["pooled"]
        guided = guidance_scale > 1.0
        if guided:
            latents, sigma = torch.cat([latents, latents]), torch.cat([sigma, sigma])
            embeds = torch.cat([conditioning["negative_embeds"], embeds])
            pooled = torch.cat([conditioning["negative_pooled"], pooled])
        with torch.autocast(latents.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            output: Tensor = self.transformer(
                hidden_states=latents.to(self.dtype),
                timestep=sigma * 1000.0,
                encoder_hidden_states=embeds,
                pooled_projections=pooled,
                return_dict=False,
            )[0]
        if guided:
            unconditional, conditional = output.chunk(2)
            output = unconditional + guidance_scale * (conditional - unconditional)
        return output.float()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) uint8 of latents at sigma = 0."""
        vae = self.pipeline.vae
        unscaled = latents / vae.config.scaling_factor + vae.config.shift_factor
        decoded = vae.decode(unscaled.to(vae.dtype), return_dict=False)[0]
        return uint8_from_signed(decoded)

    def trainable_modules(self) -> Mapping[str, nn.Module]:
        """The transformer alone."""
        return {"transformer": self.transformer}
