"""Qwen-Image: prompts in a chat template, packed latents (B, tokens, 64), CFG that keeps the prediction's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning, DrawNoise
from diffrl.models.families import FAMILIES
from diffrl.models.images import uint8_from_signed
from diffrl.models.pipeline import EMPTY, PipelineAdapter, Placement, latent_statistics
from diffrl.models.schedulers import shifted_sigmas

NOTHING = " "
"""What the model's makers give as the negative prompt for classifier-free guidance."""


class QwenImageAdapter(PipelineAdapter):
    """A `QwenImagePipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline.
        dtype: what the transformer computes in.
        height: picture height in pixels; None takes the pipeline's own.
        width: picture width in pixels; None takes the pipeline's own.
        max_sequence_length: tokens of a prompt, the end of the chat template among them. All prompts are padded to
            it, so a smaller number makes every step cheaper.
    """

    family = FAMILIES["qwen_image"]

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

    def place(self, placement: Placement) -> None:
        """As in `PipelineAdapter`.

        Raises:
            ConfigError: an attention backend without masks; diffusers would stop at the first network call.
        """
        if any(kind in (placement.attention or "") for kind in ("flash", "sage")):
            raise ConfigError(
                "model.attention must be able to mask the padding of qwen_image's prompts. Got "
                f"{placement.attention!r}. Choose native, _native_cudnn, _native_efficient or xformers."
            )
        super().place(placement)

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Embeddings (B, L, D), zeros after their ends, and masks (B, L); of the prompts and of the negative prompt."""
        with self.on_device("text_encoder"):
            own, negative = self._encode(list(prompts)), self._encode([NOTHING])
        return own | {EMPTY + name: tensor.repeat_interleave(len(prompts), 0) for name, tensor in negative.items()}

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        """The stock encoding, as long as the longest of `prompts`, padded to `max_sequence_length`."""
        embeds, mask = self.pipeline.encode_prompt(
            prompts, device=self.placement.device, max_sequence_length=self.max_sequence_length
        )
        mask = embeds.new_ones(embeds.shape[:2]) if mask is None else mask  # None: nothing of it is padding
        missing = self.max_sequence_length - embeds.shape[1]
        return {"prompt_embeds": pad(embeds, (0, 0, 0, missing)), "mask": pad(mask.bool(), (0, missing))}

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Unit normal latents, 2 x 2 patches packed: (B, h w / 4, 4 C) float32."""
        noise = draw((self._channels, self._rows, self._columns))
        packed: Tensor = self.pipeline._pack_latents(noise, len(noise), self._channels, self._rows, self._columns)
        return packed.to(self.placement.device, torch.float32)

    def sigmas(self, steps: int) -> Tensor:
        """Evenly spaced levels, shifted and stretched as the scheduler says; see `shifted_sigmas`."""
        return shifted_sigmas(self.pipeline.scheduler, steps, self._rows * self._columns // 4)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Velocity (B, h w / 4, 4 C)."""
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_mask=conditioning["mask"],
            img_shapes=[[(1, self._rows // 2, self._columns // 2)]] * len(latents),
            return_dict=False,
        )[0]
        return output

    def guide(self, unconditional: Tensor, conditional: Tensor, guidance_scale: float) -> Tensor:
        """Classifier-free guidance, each token scaled back to the length that the prompt's own prediction has."""
        guided = super().guide(unconditional, conditional, guidance_scale)
        ratio: Tensor = conditional.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)
        return guided * ratio

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) uint8 of packed latents at sigma = 0; the decoder sees videos of one frame."""
        unpacked = self.pipeline._unpack_latents(latents, self.height, self.width, self.pipeline.vae_scale_factor)
        mean, std = latent_statistics(self.pipeline.vae, latents.device)
        return uint8_from_signed(self.vae_output(unpacked * std + mean)[:, :, 0])
