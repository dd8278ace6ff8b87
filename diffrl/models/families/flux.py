"""FLUX.1: CLIP and T5, packed latents (B, tokens, 64), guidance as an input, a shift that depends on the resolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning
from diffrl.models.family import ADDED_QKV, JOINT_ATTENTION, QKV, Family, comfyui_as_diffusers
from diffrl.models.picture_adapters import PackedPictureAdapter
from diffrl.models.text_encoders import CLIP, TextEncoder

if TYPE_CHECKING:
    from torch import Tensor


ATTENTION = {
    "img_attn.qkv": QKV,
    "txt_attn.qkv": ADDED_QKV,
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.proj": ("attn.to_add_out",),
}
EMBEDDERS = {
    f"{theirs}.{'in' if number == 1 else 'out'}_layer": (f"time_text_embed.{ours}_embedder.linear_{number}",)
    for theirs, ours in (("time_in", "timestep"), ("guidance_in", "guidance"), ("vector_in", "text"))
    for number in (1, 2)
}
ENDS = {
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "final_layer.linear": ("proj_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
}
DOUBLE_BLOCK = {
    **ATTENTION,
    "img_mlp.0": ("ff.net.0.proj",),
    "img_mlp.2": ("ff.net.2",),
    "txt_mlp.0": ("ff_context.net.0.proj",),
    "txt_mlp.2": ("ff_context.net.2",),
    "img_mod.lin": ("norm1.linear",),
    "txt_mod.lin": ("norm1_context.linear",),
    "processor.qkv_lora1": QKV,  # as XLabs' trainer names them
    "processor.qkv_lora2": ADDED_QKV,
    "processor.proj_lora1": ("attn.to_out.0",),
    "processor.proj_lora2": ("attn.to_add_out",),
}
SINGLE_BLOCK = {
    "linear1": (*QKV, "proj_mlp"),
    "linear2": ("proj_out",),
    "modulation.lin": ("norm.linear",),
    "processor.qkv_lora": QKV,
    "processor.proj_lora": ("proj_out",),
}

FAMILY = Family(
    name="flux",
    title="FLUX.1",
    adapter="diffrl.models.families.flux:FluxAdapter",
    pipelines=("FluxPipeline",),
    guidance="embedded",
    lora_targets=JOINT_ATTENTION,
    exclude=(
        "x_embedder",
        "time_text_embed",
        "context_embedder",
        "norm_out",
        "^proj_out",  # the single blocks have one each, which is worth it
        "norm1.linear",
        "norm1_context.linear",
        "norm.linear",
    ),
    sol_rl_exclude=("x_embedder", "time_text_embed", "context_embedder", "norm_out"),
    distilled=(*Family.distilled, "schnell"),
    comfyui=comfyui_as_diffusers,
    original={
        "double_blocks": ("transformer_blocks", DOUBLE_BLOCK),
        "single_blocks": ("single_transformer_blocks", SINGLE_BLOCK),
        "": ("", EMBEDDERS | ENDS),
    },
    text_encoders=(CLIP, TextEncoder("tokenizer_2", "T5")),
)


class FluxAdapter(PackedPictureAdapter):
    """A `FluxPipeline` as velocities over sigmas; `max_sequence_length` counts T5 tokens."""

    family = FAMILY

    def text_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return shapes of T5's tokens, and of what CLIP pools."""
        return {**super().text_shapes(encoders), "pooled": (self.pipeline.transformer.config["pooled_projection_dim"],)}

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return T5 embeddings (B, L, D) and CLIP's pooled (B, P)."""
        with self.on_device("text_encoder") as device:
            embeds, pooled, _ = self.pipeline.encode_prompt(
                prompt=list(prompts), prompt_2=None, device=device, max_sequence_length=self.max_sequence_length
            )
        return {"prompt_embeds": embeds, "pooled": pooled}

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, h w / 4, 4 C); a network without guidance embedding takes no notice of the scale."""
        embeds = conditioning["prompt_embeds"]
        guided = self.pipeline.transformer.config.guidance_embeds
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma,
            guidance=sigma.new_full(sigma.shape, guidance_scale) if guided else None,
            pooled_projections=conditioning["pooled"],
            encoder_hidden_states=embeds,
            txt_ids=latents.new_zeros(embeds.shape[1], 3),
            img_ids=self.kept((latents.shape[1], latents.device, latents.dtype), lambda: self._image_ids(latents)),
            return_dict=False,
        )[0]
        return output

    def _image_ids(self, like: Tensor) -> Tensor:
        """Return places (h w / 4, 3) of the tokens, on the device of some latents."""
        _, rows, columns = self.latent_shape
        ids: Tensor = self.pipeline._prepare_latent_image_ids(1, rows // 2, columns // 2, like.device, like.dtype)
        return ids


TINY_SETTINGS = {"max_sequence_length": 12, "height": 32, "width": 32}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `FluxPipeline` for 32 x 32 pictures with embedded guidance."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    from diffrl.models import tiny

    clip_tokenizer, tokenizer = tiny.build_clip_tokenizer(words), tiny.build_word_tokenizer(words)
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=tiny.build_vae((8, 8, 16), norm_num_groups=4, scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=tiny.build_clip(clip_tokenizer, projected=False),
        tokenizer=clip_tokenizer,
        text_encoder_2=tiny.build_t5(len(tokenizer)),
        tokenizer_2=tokenizer,
        transformer=FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=64,
            guidance_embeds=True,
            axes_dims_rope=(4, 6, 6),
        ),
    )
