"""FLUX.2 klein: three layers of Qwen3, packed latents (B, tokens, 128), a shift by resolution and number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning, DrawNoise
from diffrl.models.families.flux import ATTENTION, EMBEDDERS, ENDS
from diffrl.models.family import JOINT_ATTENTION, Family, comfyui_as_diffusers
from diffrl.models.picture_adapters import PackedPictureAdapter
from diffrl.models.schedulers import shifted_sigmas
from diffrl.models.text_encoders import TextEncoder, chat_length

if TYPE_CHECKING:
    from torch import Tensor


MODULATION_LAYERS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")


def comfyui_key(layer: str) -> str | None:
    """Return the key as diffusers has it: ComfyUI's table for FLUX lacks what FLUX.2 has outside its blocks."""
    return None if "modulation" in layer or "time_guidance_embed" in layer else comfyui_as_diffusers(layer)


DOUBLE_BLOCK = ATTENTION | {
    f"{theirs}_mlp.{number}": (f"{ours}.linear_{end}",)
    for theirs, ours in (("img", "ff"), ("txt", "ff_context"))
    for number, end in ((0, "in"), (2, "out"))
}
MODULATIONS = {f"{name}.lin": (f"{name}.linear",) for name in MODULATION_LAYERS}

FAMILY = Family(
    name="flux2_klein",
    title="FLUX.2 klein",
    adapter="diffrl.models.families.flux2_klein:Flux2KleinAdapter",
    pipelines=("Flux2KleinPipeline",),
    lora_targets=(*JOINT_ATTENTION, "to_qkv_mlp_proj"),  # the last has queries, keys and values of the single blocks
    exclude=(
        "x_embedder",
        "context_embedder",
        "time_guidance_embed",
        *MODULATION_LAYERS,
        "norm_out",
        "proj_out",
    ),
    distilled=(*Family.distilled, "klein-4b", "klein-9b"),  # the base models are klein-base-4b and klein-base-9b
    comfyui=comfyui_key,
    original={
        "double_blocks": ("transformer_blocks", DOUBLE_BLOCK),
        "single_blocks": (
            "single_transformer_blocks",
            {"linear1": ("attn.to_qkv_mlp_proj",), "linear2": ("attn.to_out",)},
        ),
        "": ("", {k: (v.replace("time_text", "time_guidance"),) for k, (v,) in EMBEDDERS.items()} | ENDS | MODULATIONS),
    },
    text_encoders=(TextEncoder("tokenizer", "Qwen3", partial(chat_length, enable_thinking=False)),),
)


class Flux2KleinAdapter(PackedPictureAdapter):
    """A `Flux2KleinPipeline` as velocities over sigmas.

    The network sees the padding of prompts too, as in the stock pipeline, so another `max_sequence_length` draws
    another picture.
    """

    family = FAMILY

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, 3 D) of the prompts and of the empty prompt."""
        return self.encode_beside_empty(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        embeds, _ = self.pipeline.encode_prompt(
            prompts, device=self.placement.device, max_sequence_length=self.max_sequence_length
        )
        return {"prompt_embeds": embeds}

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Return unit normal latents of 2 x 2 patches, packed: (B, h w / 4, 4 C) float32."""
        channels, rows, columns = self.latent_shape
        noise = draw((4 * channels, rows // 2, columns // 2)).float().to(self.placement.device)
        packed: Tensor = self.pipeline._pack_latents(noise)
        return packed

    def unpack(self, latents: Tensor) -> Tensor:
        """Turn (B, h w / 4, 4 C) into (B, C, h, w) in the decoder's units: normalisation undone by channel."""
        _, rows, columns = self.latent_shape
        patches = latents.transpose(1, 2).unflatten(2, (rows // 2, columns // 2))
        mean, deviation = self._normalisation(latents)
        unpacked: Tensor = self.pipeline._unpatchify_latents(patches * deviation + mean)
        return unpacked

    def pack(self, latents: Tensor) -> Tensor:
        """Turn (B, C, h, w) in the decoder's units into (B, h w / 4, 4 C), normalised by channel."""
        mean, deviation = self._normalisation(latents)
        packed: Tensor = self.pipeline._pack_latents((self.pipeline._patchify_latents(latents) - mean) / deviation)
        return packed

    def _normalisation(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the deviation of each channel of 2 x 2 patches, (1, 4 C, 1, 1)."""
        norm, eps = self.pipeline.vae.bn, self.pipeline.vae.config.batch_norm_eps
        mean, variance = (
            one.to(like.device, like.dtype).view(1, -1, 1, 1) for one in (norm.running_mean, norm.running_var)
        )
        return mean, (variance + eps).sqrt()

    def sigmas(self, steps: int) -> Tensor:
        """Return evenly spaced levels, shifted by the numbers of picture tokens and of steps."""
        from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

        return shifted_sigmas(self.pipeline.scheduler, steps, mu=compute_empirical_mu(self.tokens, steps))

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, h w / 4, 4 C)."""
        embeds, device = conditioning["prompt_embeds"], latents.device
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma,
            guidance=None,
            encoder_hidden_states=embeds,
            txt_ids=self.kept(("text", embeds.shape[1], device), lambda: self._text_ids(embeds)),
            img_ids=self.kept(("image", device), lambda: self._image_ids(latents)),
            return_dict=False,
        )[0]
        return output

    def _text_ids(self, embeds: Tensor) -> Tensor:
        """Return places (L, 4) of a prompt's tokens, on the device of its embeddings."""
        ids: Tensor = self.pipeline._prepare_text_ids(embeds[:1])[0]
        return ids.to(embeds.device)

    def _image_ids(self, like: Tensor) -> Tensor:
        """Return places (h w / 4, 4) of the tokens, on the device of some latents."""
        _, rows, columns = self.latent_shape
        ids: Tensor = self.pipeline._prepare_latent_ids(like.new_empty(1, 1, rows // 2, columns // 2))[0]
        return ids.to(like.device)


TINY_SETTINGS = {"max_sequence_length": 24, "height": 32, "width": 32}


def build_tiny(words: Sequence[str]) -> Any:
    """Build a pipeline for 32 x 32 images; its text encoder is as deep as the pipeline reads, 28 layers."""
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2KleinPipeline,
        Flux2Transformer2DModel,
    )
    from torch import nn

    from diffrl.models import tiny

    tokenizer = tiny.build_qwen_tokenizer(words)
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 8, 16),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
        mid_block_add_attention=False,
    )
    nn.init.normal_(vae.bn.running_mean)
    nn.init.uniform_(vae.bn.running_var, 0.5, 3.0)
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=vae,
        text_encoder=tiny.build_qwen3(len(tokenizer), layers=28, width=16),
        tokenizer=tokenizer,
        transformer=Flux2Transformer2DModel(
            in_channels=16,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=48,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=False,
        ),
    )
