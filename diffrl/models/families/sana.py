"""SANA: Gemma prompts with an instruction before them, linear attention, 32-fold compressed latents, CFG."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning
from diffrl.models.family import Family
from diffrl.models.picture_adapters import PictureAdapter
from diffrl.models.text_encoders import TextEncoder, plain_length

if TYPE_CHECKING:
    from torch import Tensor


def _text_length(tokenizer: Any, text: str) -> int:
    """Return tokens of a prompt behind the instruction, which comes before it in the stock pipeline."""
    from diffusers import SanaPipeline

    call = inspect.signature(SanaPipeline.__call__).parameters
    before = "\n".join(call["complex_human_instruction"].default)
    return plain_length(tokenizer, before + text) - (len(tokenizer.encode(before)) - 2)


FAMILY = Family(
    name="sana",
    title="SANA",
    adapter="diffrl.models.families.sana:SanaAdapter",
    pipelines=("SanaPipeline",),
    negative_prompt="",
    exclude=("patch_embed", "time_embed", "caption_projection", "proj_out"),
    sol_rl_exclude=(  # all but the feed-forward and the text's keys and values, there one layer wider than 2,240
        "patch_embed",
        "time_embed",
        "caption_projection",
        "proj_out",
        "attn1",
        "attn2.to_q",
        "attn2.to_out",
    ),
    max_sequence_length=300,
    stock_options=(("use_resolution_binning", False),),
    distilled=(*Family.distilled, "sprint"),
    masks_prompts=True,
    text_encoders=(TextEncoder("tokenizer", "Gemma", _text_length),),
)


class SanaAdapter(PictureAdapter):
    """A `SanaPipeline` as velocities over sigmas.

    The stock pipeline rounds sizes to those that SANA was trained on; here a size is taken as it is given.
    `max_sequence_length` counts Gemma tokens of a prompt, the instruction not among them.
    """

    family = FAMILY
    text_width = "caption_channels"

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, D) and masks (B, L) of the prompts, and of the empty prompt for guidance."""
        call = inspect.signature(type(self.pipeline).__call__).parameters
        with self.on_device("text_encoder") as device:
            embeds, mask, negative, negative_mask = self.pipeline.encode_prompt(
                list(prompts),
                negative_prompt=self.negative_prompt,
                do_classifier_free_guidance=not self.empty_prompt_cached,
                device=device,
                max_sequence_length=self.max_sequence_length,
                complex_human_instruction=call["complex_human_instruction"].default,
            )
        tensors = {"prompt_embeds": embeds, "mask": mask}
        return self.with_empty(tensors, {"prompt_embeds": negative, "mask": negative_mask})

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, C, h, w); what a network predicts beside it (learned variance) is left out."""
        config = self.pipeline.transformer.config
        output: Tensor = self.transformer(
            latents,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_attention_mask=conditioning["mask"],
            timestep=sigma * 1000.0 * config.timestep_scale,
            return_dict=False,
        )[0]
        return output.chunk(2, dim=1)[0] if config.out_channels == 2 * config.in_channels else output


TINY_SETTINGS = {"max_sequence_length": 12, "height": 32, "width": 32}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `SanaPipeline` for 32 x 32 pictures: Gemma 2, DC-AE and DPM-Solver++ as in SANA."""
    from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline
    from transformers import Gemma2Config, Gemma2Model

    from diffrl.models.tiny import build_word_tokenizer

    tokenizer = build_word_tokenizer(words)
    text = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
    )
    sides = {
        "block_types": ("ResBlock", "EfficientViTBlock"),
        "block_out_channels": (8, 8),
        "qkv_multiscales": ((), (5,)),
        "layers_per_block": (1, 1),
    }
    return SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=Gemma2Model(text),
        vae=AutoencoderDC(
            in_channels=3,
            latent_channels=4,
            attention_head_dim=2,
            **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()},
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            decoder_norm_types="rms_norm",
            decoder_act_fns="silu",
            scaling_factor=0.41407,
        ),
        transformer=build_tiny_transformer(),
        scheduler=DPMSolverMultistepScheduler(
            algorithm_type="dpmsolver++", prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )


def build_tiny_transformer() -> Any:
    """Return two blocks over a token for each latent pixel."""
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=16,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=32,
        sample_size=16,
    )
