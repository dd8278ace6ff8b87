"""SANA: Gemma prompts with an instruction before them, linear attention, 32-fold compressed latents, CFG."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffrl.models.adapter import Conditioning, DrawNoise
from diffrl.models.families import FAMILIES
from diffrl.models.images import uint8_from_signed
from diffrl.models.pipeline import PipelineAdapter
from diffrl.models.schedulers import flow_sigmas


class SanaAdapter(PipelineAdapter):
    """A `SanaPipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline.
        dtype: what the transformer computes in.
        height: picture height in pixels; None takes the pipeline's own. The stock pipeline rounds sizes to those that
            SANA was trained on; here the size is taken as it is given.
        width: picture width in pixels; None takes the pipeline's own.
        max_sequence_length: Gemma tokens of a prompt, the instruction not counted.
    """

    family = FAMILIES["sana"]

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype = torch.float32,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        config, scale = pipeline.transformer.config, pipeline.vae_scale_factor
        self.take_size(height, width, config.sample_size * scale, scale * config.patch_size)
        self._latent_shape = (config.in_channels, self.height // scale, self.width // scale)
        call = inspect.signature(type(pipeline).__call__).parameters
        self._instruction = call["complex_human_instruction"].default

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Embeddings (B, L, D) and masks (B, L) of the prompts, and of the empty prompt for guidance."""
        with self.on_device("text_encoder") as device:
            embeds, mask, negative, negative_mask = self.pipeline.encode_prompt(
                list(prompts),
                do_classifier_free_guidance=True,
                device=device,
                max_sequence_length=self.max_sequence_length,
                complex_human_instruction=self._instruction,
            )
        return {
            "prompt_embeds": embeds,
            "mask": mask,
            "negative_prompt_embeds": negative,
            "negative_mask": negative_mask,
        }

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Unit normal latents (B, C, h, w) float32."""
        return draw(self._latent_shape).to(self.placement.device, torch.float32)

    def sigmas(self, steps: int) -> Tensor:
        """The scheduler's levels, its flow_shift included; see `flow_sigmas`."""
        return flow_sigmas(self.pipeline.scheduler, steps)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Velocity (B, C, h, w); what a network predicts beside it (learned variance) is left out."""
        config = self.pipeline.transformer.config
        output: Tensor = self.transformer(
            latents,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["mask"],
            timestep=sigma * 1000.0 * config.timestep_scale,
            return_dict=False,
        )[0]
        return output.chunk(2, dim=1)[0] if config.out_channels == 2 * config.in_channels else output

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) uint8 of latents at sigma = 0."""
        return uint8_from_signed(self.vae_output(latents / self.pipeline.vae.config.scaling_factor))
