"""Wan 2.1 and 2.2, text to video: UMT5 prompts, latents (B, C, f, h, w), CFG, one network or two by noise level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning, DrawNoise
from diffrl.models.families import FAMILIES
from diffrl.models.images import uint8_from_signed
from diffrl.models.pipeline import PipelineAdapter, latent_statistics, require_multiple
from diffrl.models.schedulers import flow_sigmas

STOCK_HEIGHT, STOCK_WIDTH, STOCK_FRAMES = 480, 832, 81


class TwoExperts(nn.Module):
    """Wan 2.2's two networks as one: each row goes to the network of its noise level.

    Args:
        high: for timesteps >= boundary.
        low: for timesteps below.
        boundary: timestep, 0 to 1000.
    """

    def __init__(self, high: nn.Module, low: nn.Module, boundary: float):
        super().__init__()
        self.high, self.low, self.boundary = high, low, boundary

    @property
    def config(self) -> Any:
        """Of the first network; both have the same sizes."""
        return self.high.config

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **kwargs: Any) -> Any:
        """As either network, with return_dict=False."""
        level = timestep if timestep.ndim == 1 else timestep[:, 0]
        output: Tensor | None = None
        for network, rows in ((self.high, level >= self.boundary), (self.low, level < self.boundary)):
            if bool(rows.any()):
                part = network(
                    hidden_states=hidden_states[rows],
                    timestep=timestep[rows],
                    encoder_hidden_states=encoder_hidden_states[rows],
                    **kwargs,
                )[0]
                output = part.new_empty((len(rows), *part.shape[1:])) if output is None else output
                output = output.index_put((torch.nonzero(rows).flatten(),), part)
        return (output,)

    def add_adapter(self, config: Any, adapter_name: str = "default") -> None:
        """A LoRA on both."""
        for network in (self.high, self.low):
            network.add_adapter(config, adapter_name=adapter_name)  # type: ignore[operator]

    def disable_adapters(self) -> None:
        """Both as they were loaded."""
        for network in (self.high, self.low):
            network.disable_adapters()  # type: ignore[operator]

    def enable_adapters(self) -> None:
        """Both with their LoRA again."""
        for network in (self.high, self.low):
            network.enable_adapters()  # type: ignore[operator]

    def enable_gradient_checkpointing(self) -> None:
        """In both."""
        for network in (self.high, self.low):
            network.enable_gradient_checkpointing()  # type: ignore[operator]

    def set_attention_backend(self, name: str) -> None:
        """Of both."""
        for network in (self.high, self.low):
            network.set_attention_backend(name)  # type: ignore[operator]


class WanAdapter(PipelineAdapter):
    """A `WanPipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline; with `transformer_2` both networks are trained.
        dtype: what the transformer computes in.
        height: of the video in pixels; None takes the stock call's 480.
        width: of the video in pixels; None takes the stock call's 832.
        frames: of the video; None takes the stock call's 81.
        max_sequence_length: UMT5 tokens of a prompt.
    """

    family = FAMILIES["wan"]
    vae_dtype = torch.float32  # as its makers run it; bfloat16 shows banding

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype = torch.float32,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        self._config = pipeline.transformer.config
        self.height, self.width = height or STOCK_HEIGHT, width or STOCK_WIDTH
        self.frames = frames or STOCK_FRAMES
        scale, period = pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal
        _, rows, columns = self._config.patch_size
        require_multiple(self.height, self.width, scale * max(rows, columns))
        if self.frames % period != 1 % period:
            raise ConfigError(
                f"model.frames must be a multiple of {period}, plus 1. Got {self.frames}. Take "
                f"{self.frames // period * period + 1}."
            )
        shape = ((self.frames - 1) // period + 1, self.height // scale, self.width // scale)
        self._latent_shape = (self._config.in_channels, *shape)
        self._boundary = pipeline.config.get("boundary_ratio")
        if self._boundary is not None and pipeline.transformer_2 is not None:
            self.transformer = TwoExperts(pipeline.transformer, pipeline.transformer_2, self._boundary * 1000.0)

    @torch.no_grad()
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Embeddings (B, L, D) of the prompts, zeros after their ends, and of the empty prompt for guidance."""
        with self.on_device("text_encoder") as device:
            embeds, negative = self.pipeline.encode_prompt(
                list(prompts),
                do_classifier_free_guidance=True,
                device=device,
                max_sequence_length=self.max_sequence_length,
            )
        return {"prompt_embeds": embeds, "negative_prompt_embeds": negative}

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Unit normal latents (B, C, f, h, w) float32."""
        return draw(self._latent_shape).to(self.placement.device, torch.float32)

    def sigmas(self, steps: int) -> Tensor:
        """The scheduler's levels, its flow_shift included; see `flow_sigmas`."""
        return flow_sigmas(self.pipeline.scheduler, steps)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Velocity (B, C, f, h, w)."""
        timestep = sigma * 1000.0
        if self.pipeline.config.get("expand_timesteps"):  # Wan 2.2 TI2V: a noise level for every token
            _, frames, rows, columns = self._latent_shape
            _, high, wide = self._config.patch_size
            timestep = timestep[:, None].expand(-1, frames * (rows // high) * (columns // wide))
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            return_dict=False,
        )[0]
        return output

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Videos (B, F, 3, H, W) uint8 of latents at sigma = 0."""
        mean, std = latent_statistics(self.pipeline.vae, latents.device)
        return uint8_from_signed(self.vae_output(latents * std + mean).transpose(1, 2))

    def trainable_modules(self) -> Mapping[str, nn.Module]:
        """The transformer, or both."""
        if isinstance(self.transformer, TwoExperts):
            return {"transformer": self.transformer.high, "transformer_2": self.transformer.low}
        return {"transformer": self.transformer}
