"""Stable Diffusion 3 and 3.5: two CLIP encoders, an optional T5, latents (B, C, h, w), classifier-free guidance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning
from diffrl.models.family import ADDED_QKV, JOINT_ATTENTION, QKV, Family, comfyui_as_diffusers
from diffrl.models.picture_adapters import PictureAdapter
from diffrl.models.text_encoders import CLIP, TextEncoder

if TYPE_CHECKING:
    from torch import Tensor

CLIP_TOKENS = 77

BLOCK = {
    "x_block.attn.qkv": QKV,
    "x_block.attn2.qkv": ("attn2.to_q", "attn2.to_k", "attn2.to_v"),
    "context_block.attn.qkv": ADDED_QKV,
    "x_block.attn.proj": ("attn.to_out.0",),
    "x_block.attn2.proj": ("attn2.to_out.0",),
    "context_block.attn.proj": ("attn.to_add_out",),
    "x_block.mlp.fc1": ("ff.net.0.proj",),
    "x_block.mlp.fc2": ("ff.net.2",),
    "context_block.mlp.fc1": ("ff_context.net.0.proj",),
    "context_block.mlp.fc2": ("ff_context.net.2",),
    "x_block.adaLN_modulation.1": ("norm1.linear",),
    "context_block.adaLN_modulation.1": ("norm1_context.linear",),
}
ENDS = {
    "t_embedder.mlp.0": ("time_text_embed.timestep_embedder.linear_1",),
    "t_embedder.mlp.2": ("time_text_embed.timestep_embedder.linear_2",),
    "y_embedder.mlp.0": ("time_text_embed.text_embedder.linear_1",),
    "y_embedder.mlp.2": ("time_text_embed.text_embedder.linear_2",),
    "final_layer.linear": ("proj_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
}

FAMILY = Family(
    name="sd3",
    title="Stable Diffusion 3 and 3.5",
    adapter="diffrl.models.families.sd3:SD3Adapter",
    pipelines=("StableDiffusion3Pipeline",),
    negative_prompt="",
    lora_targets=tuple(f"attn.{layer}" for layer in JOINT_ATTENTION),  # without attn2, as published
    exclude=(
        "pos_embed",
        "time_text_embed",
        "context_embedder",
        "norm_out",
        "proj_out",
        "norm1.linear",  # adaLN's modulation: a third of the parameters, but one row a sample
        "norm1_context.linear",
    ),
    sol_rl_exclude=(  # all but the image's feed-forward: no other layer is wider than 2,432
        "pos_embed",
        "time_text_embed",
        "context_embedder",
        "norm_out",
        "proj_out",
        "norm1*",
        "attn*",
        "ff_context",
    ),
    max_sequence_length=256,
    comfyui=comfyui_as_diffusers,
    original={"joint_blocks": ("transformer_blocks", BLOCK), "": ("", ENDS)},
    text_encoders=(CLIP, replace(CLIP, part="tokenizer_2", name="CLIP-G"), TextEncoder("tokenizer_3", "T5")),
)


class SD3Adapter(PictureAdapter):
    """A `StableDiffusion3Pipeline` as velocities over sigmas.

    `max_sequence_length` is the length of the T5 part of the conditioning. Without a T5 encoder it is the number of
    zero tokens that are appended (the stock pipeline appends 256).
    """

    family = FAMILY

    def require_size(self, patch: int) -> None:
        """Require whole patches, and no more of them than the position table has.

        Raises:
            ConfigError: it is another size.
        """
        super().require_size(patch)
        most = self.pipeline.transformer.config.pos_embed_max_size * patch
        if max(self.height, self.width) > most:
            raise ConfigError(
                f"model.height and model.width must be at most {most}, the size of this model's position table. Got "
                f"{self.height} x {self.width}. Choose a smaller size."
            )

    def text_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return shapes of CLIP's and T5's tokens, and of what CLIP pools."""
        clip = encoders.get("text_encoder", {}).get("max_position_embeddings", CLIP_TOKENS)
        config = self.pipeline.transformer.config
        embeds = (clip + self.max_sequence_length, config[self.text_width])
        return {"prompt_embeds": embeds, "pooled": (config["pooled_projection_dim"],)}

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, D) and pooled (B, P) of the prompts, and of the empty prompt for guidance."""
        with self.on_device("text_encoder") as device:
            embeds, negative, pooled, negative_pooled = self.pipeline.encode_prompt(
                prompt=list(prompts),
                prompt_2=None,
                prompt_3=None,
                device=device,
                negative_prompt=self.negative_prompt,
                do_classifier_free_guidance=not self.empty_prompt_cached,
                max_sequence_length=self.max_sequence_length,
            )
        tensors = {"prompt_embeds": embeds, "pooled": pooled}
        return self.with_empty(tensors, {"prompt_embeds": negative, "pooled": negative_pooled})

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, C, h, w)."""
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma * 1000.0,
            encoder_hidden_states=conditioning["prompt_embeds"],
            pooled_projections=conditioning["pooled"],
            return_dict=False,
        )[0]
        return output


T5_TOKENS = 1
"""Length of the T5 part with the tiny pipeline: the placeholder's output is zero, so one token is as good as many."""

TINY_SETTINGS = {"max_sequence_length": T5_TOKENS}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `StableDiffusion3Pipeline` for 32 x 32 pictures.

    `from_pretrained` wants a third text encoder, so there is one: a T5 of 4,000 weights whose last norm is zero, which
    gives the zeros that the stock pipeline puts in place of a missing T5.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    from diffrl.models import tiny

    tokenizer = tiny.build_clip_tokenizer(words)
    parts = {
        "transformer": SD3Transformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=4,
            attention_head_dim=32,
            num_attention_heads=4,
            joint_attention_dim=tiny.EMBEDDING,
            caption_projection_dim=tiny.EMBEDDING,
            pooled_projection_dim=tiny.EMBEDDING,
            pos_embed_max_size=4,
        ),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=1.0),
        "vae": build_tiny_vae(),
        "text_encoder": tiny.build_clip(tokenizer),
        "tokenizer": tokenizer,
        "text_encoder_2": tiny.build_clip(tokenizer),
        "tokenizer_2": tokenizer,
    }
    t5_tokenizer, t5 = tiny.build_zero_t5()
    return StableDiffusion3Pipeline(**parts, text_encoder_3=t5, tokenizer_3=t5_tokenizer)


def build_tiny_vae() -> Any:
    """Return 32 x 32 x 3 pictures to 8 x 8 x 4 latents."""
    from diffrl.models.tiny import build_vae

    return build_vae((16, 32, 64), norm_num_groups=8, shift_factor=0.0)
