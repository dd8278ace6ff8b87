"""HunyuanVideo 1.5, text to video: Qwen2.5-VL and ByT5 prompts, latents (B, 32, f, h, w), CFG by the usual line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning
from diffrl.models.family import ADDED_QKV, JOINT_ATTENTION, QKV, Family
from diffrl.models.pipeline import PipelineAdapter, require_frames, require_multiple
from diffrl.models.schedulers import shifted_sigmas
from diffrl.models.text_encoders import TextEncoder, plain_length
from reward_models.common.messages import show

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STOCK_FRAMES = 121
GLYPH_TOKENS = 256
"""Bytes of the texts in quotation marks; the pipeline pads to it."""


def own_size(scale: int, target: int) -> tuple[int, int]:
    """Return height and width of the stock call: 16 : 9 with as many pixels as a square of side `target`."""
    from diffusers.pipelines.hunyuan_video1_5.image_processor import HunyuanVideo15ImageProcessor

    height, width = HunyuanVideo15ImageProcessor(vae_scale_factor=scale).calculate_default_height_width(9, 16, target)
    return height, width


def _text_length(tokenizer: Any, text: str) -> int:
    """Return tokens of a prompt in the stock pipeline's chat template, behind its beginning, which is cut off."""
    from diffusers.pipelines.hunyuan_video1_5 import pipeline_hunyuan_video1_5 as stock

    options = inspect.signature(stock.HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
    (chat,) = stock.format_text_input([text], options["system_message"].default)
    written = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(written, add_special_tokens=False)["input_ids"]) - int(options["crop_start"].default)


def _glyph_length(tokenizer: Any, text: str) -> int:
    """Return tokens, bytes, of what stands in quotes; 0 if nothing does."""
    from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import extract_glyph_texts

    glyphs = extract_glyph_texts(text)
    return 0 if glyphs is None else plain_length(tokenizer, glyphs)


SIDES = {"img": QKV, "txt": ADDED_QKV}
BLOCK = {
    **{
        f"{side}_attn_{kind}": (layer,)
        for side, kinds in SIDES.items()
        for kind, layer in zip("qkv", kinds, strict=True)
    },
    "img_attn_qkv": QKV,
    "txt_attn_qkv": ADDED_QKV,
    "img_attn_proj": ("attn.to_out.0",),
    "txt_attn_proj": ("attn.to_add_out",),
    **{
        f"{side}_mlp.{theirs}": (f"{ours}.{layer}",)
        for side, ours in (("img", "ff"), ("txt", "ff_context"))
        for theirs, layer in (("fc1", "net.0.proj"), ("0", "net.0.proj"), ("fc2", "net.2"), ("2", "net.2"))
    },
    **{f"img_mod.{name}": ("norm1.linear",) for name in ("linear", "lin")},
    **{f"txt_mod.{name}": ("norm1_context.linear",) for name in ("linear", "lin")},
}
"""Layers of a block by its makers' names, queries, keys and values apart as they have them or in one as ComfyUI has."""

FAMILY = Family(
    name="hunyuan_video",
    title="HunyuanVideo 1.5, text to video",
    adapter="diffrl.models.families.hunyuan_video:HunyuanVideoAdapter",
    pipelines=("HunyuanVideo15Pipeline",),
    negative_prompt="",
    media="video",
    fps=24.0,
    lora_targets=JOINT_ATTENTION[:-1],  # without to_add_out: the last block's feeds nothing, which DDP refuses
    exclude=(
        "x_embedder",
        "image_embedder",
        "context_embedder.proj_in",
        "context_embedder.time_text_embed",
        "context_embedder_2",
        "time_embed",
        "norm1",
        "norm1_context",
        "norm_out",
        "^proj_out",
    ),
    max_sequence_length=1000,
    stock_lines=(
        ("guidance_scale", "pipeline.guider = pipeline.guider.new(guidance_scale={})"),
        ("max_sequence_length", "pipeline.tokenizer_max_length = {}"),
    ),
    lora_loader="HunyuanVideoLoraLoaderMixin",  # HunyuanVideo's before 1.5; diffusers 0.42 gave this pipeline none
    original={"double_blocks": ("transformer_blocks", BLOCK)},
    masks_prompts=True,
    idle_weights=True,  # of the last block's text half
    text_encoders=(
        TextEncoder("tokenizer", "Qwen2.5-VL", _text_length),
        TextEncoder("tokenizer_2", "ByT5, of quoted texts", _glyph_length, limit=256, per_character=10),
    ),
)


class HunyuanVideoAdapter(PipelineAdapter):
    """A `HunyuanVideo15Pipeline` as velocities over sigmas.

    Args:
        pipeline: the diffusers pipeline; its guider does classifier-free guidance by the usual line.
        dtype: what the transformer computes in.
        height: of the video in pixels; None takes the stock call's.
        width: of the video in pixels; None takes the stock call's.
        frames: of the video; None takes the stock call's 121.
        max_sequence_length: Qwen tokens of a prompt, the end of the chat template among them. A network call takes as
            many as its longest prompt has, and as many bytes as its longest quoted text, so that a large number costs
            nothing but the memory of encodings.
    """

    family = FAMILY
    text_width = "text_embed_dim"

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        max_sequence_length: int | None = None,
    ):
        super().__init__(pipeline, dtype, max_sequence_length)
        _require_usual_guidance(pipeline.guider)
        config = pipeline.transformer.config
        scale, period = pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal
        size = own_size(scale, pipeline.target_size)
        height, width, frames = height or size[0], width or size[1], frames or STOCK_FRAMES
        require_multiple(height, width, scale * config.patch_size)
        require_frames(frames, period)
        self.height, self.width, self.frames = height, width, frames
        channels = pipeline.vae.config.latent_channels
        pipeline.vae.enable_slicing()  # the decoder cannot take two videos at once: its mask lacks the heads' axis
        self.latent_shape = (channels, (frames - 1) // period + 1, height // scale, width // scale)

    def sigmas(self, steps: int) -> Tensor:
        """Return evenly spaced levels, shifted by the scheduler's number; see `shifted_sigmas`."""
        return shifted_sigmas(self.pipeline.scheduler, steps)

    def text_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return shapes of Qwen2.5-VL's tokens and ByT5's, and of their masks."""
        glyphs = (GLYPH_TOKENS, self.pipeline.transformer.config["text_embed_2_dim"])
        return {**super().text_shapes(encoders), "glyph_embeds": glyphs, "glyph_mask": (GLYPH_TOKENS,)}

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return Qwen2.5-VL's embeddings (B, L, D), masks (B, L), ByT5's (B, 256, D'), (B, 256), and the empty one's.

        ByT5 reads what stands in quotation marks; of a prompt without it, its embeddings are 0 and masked.
        """
        return self.encode_beside_empty(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        self.pipeline.tokenizer_max_length = self.max_sequence_length
        embeds, mask, embeds_2, mask_2 = self.pipeline.encode_prompt(
            prompts, device=self.placement.device, dtype=self.dtype, batch_size=len(prompts)
        )
        return {"prompt_embeds": embeds, "mask": mask.bool(), "glyph_embeds": embeds_2, "glyph_mask": mask_2.bool()}

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, 32, f, h, w).

        The network also takes an image: its latents and a mask as further channels, and its tokens. From text alone the
        stock pipeline gives zeros and masks the 729 tokens in every block; here there are none. Padding that all rows
        have is masked as well, and left out.
        """
        import torch

        config = self.pipeline.transformer.config
        text, mask = _until_end(conditioning["prompt_embeds"], conditioning["mask"])
        glyphs, glyph_mask = _until_end(conditioning["glyph_embeds"], conditioning["glyph_mask"])
        rows, channels = latents.shape[:2]
        # Rounded as in the stock pipeline; unlike other families' networks this one does not cast it to its own dtype.
        timestep = (sigma * 1000.0).to(latents.dtype).to(next(self.transformer.parameters()).dtype)
        no_image = latents.new_zeros(rows, config.in_channels - channels, *latents.shape[2:])
        output: Tensor = self.transformer(
            hidden_states=torch.cat([latents, no_image], dim=1),
            timestep=timestep,
            encoder_hidden_states=text,
            encoder_attention_mask=mask,
            encoder_hidden_states_2=glyphs,
            encoder_attention_mask_2=glyph_mask,
            image_embeds=latents.new_zeros(rows, 0, config.image_embed_dim),
            return_dict=False,
        )[0]
        return output


def _until_end(embeds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return embeddings (B, L, D) and their masks (B, L) up to the last place that any row takes."""
    longest = int(mask.sum(dim=1).max())
    return embeds[:, :longest], mask[:, :longest]


def _require_usual_guidance(guider: Any) -> None:
    """Refuse a pipeline whose guider does anything but classifier-free guidance at every step; None is in benchmarks.

    Raises:
        ConfigError: it does.
    """
    if guider is None:
        return
    usual = {"guidance_rescale": 0.0, "use_original_formulation": False, "start": 0.0, "stop": 1.0}
    has = {name: guider.config.get(name) for name in usual} if type(guider).__name__ == USUAL_GUIDER else None
    if has != usual:
        raise ConfigError(
            f"The pipeline's guider must be a {USUAL_GUIDER} with {show(usual)}, which is what guidance is here. Got a "
            f"{type(guider).__name__}{'' if has is None else f' with {show(has)}'}. Mend guider/guider_config.json."
        )


USUAL_GUIDER = "ClassifierFreeGuidance"

TINY_SETTINGS = {"max_sequence_length": 20, "height": 32, "width": 32, "frames": 9}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `HunyuanVideo15Pipeline` for 32 x 32 videos of 4 n + 1 frames.

    Each of `words` is a single token but for a prompt's first.
    """
    import inspect
    import re

    from diffusers import (
        AutoencoderKLHunyuanVideo15,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Pipeline,
        HunyuanVideo15Transformer3DModel,
    )
    from transformers import ByT5Tokenizer

    from diffrl.models import tiny

    # The pipeline cuts off the first 108 tokens by number: of its system message each word must be one.
    asked = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters["system_message"].default
    first, *later = re.findall("[A-Za-z]+", asked)
    tokenizer = tiny.build_qwen_tokenizer(words, (f"system user assistant {first}", " ".join(later)), spaces=8)
    return HunyuanVideo15Pipeline(
        text_encoder=tiny.build_qwen_vl_text(len(tokenizer), layers=4),
        tokenizer=tokenizer,
        transformer=HunyuanVideo15Transformer3DModel(
            in_channels=9,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=2,
            num_refiner_layers=1,
            mlp_ratio=2.0,
            text_embed_dim=32,
            text_embed_2_dim=32,
            image_embed_dim=16,
            rope_axes_dim=(4, 6, 6),
            target_size=32,
            task_type="t2v",
        ),
        vae=AutoencoderKLHunyuanVideo15(
            latent_channels=4,
            block_out_channels=(8, 8, 16, 16),
            layers_per_block=1,
            spatial_compression_ratio=8,
            scaling_factor=1.03682,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        text_encoder_2=tiny.build_t5(384),
        tokenizer_2=ByT5Tokenizer(),
        guider=ClassifierFreeGuidance(guidance_scale=6.0),
    )
