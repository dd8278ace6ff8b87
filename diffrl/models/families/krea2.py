"""Krea 2: the states of twelve layers of a text encoder, packed latents (B, tokens, 64), classifier-free guidance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning
from diffrl.models.family import Family
from diffrl.models.picture_adapters import PackedPictureAdapter
from diffrl.models.schedulers import shifted_sigmas
from diffrl.models.text_encoders import TextEncoder, plain_length

if TYPE_CHECKING:
    from torch import Tensor

STOCK_SIDE = 1024
"""Height and width that the stock call takes, in pixels."""

DISTILLED_SHIFT = 1.15
"""The shift of the noise levels of a distilled checkpoint, whatever the size of its pictures (`Krea2Pipeline`)."""


def _text_length(tokenizer: Any, text: str) -> int:
    """Return tokens of a prompt in the stock pipeline's chat template, behind its beginning, which is cut off."""
    beginning, end, start = _template()
    return plain_length(tokenizer, beginning + text + end) - start


@cache
def _template() -> tuple[str, str, int]:
    """Return beginning and end of the stock pipeline's chat template, and how many of its tokens are cut off."""
    from diffusers import Krea2Pipeline

    stock = Krea2Pipeline(None, None, None, None, None)
    start: int = stock.prompt_template_encode_start_idx
    return stock.prompt_template_encode_prefix, stock.prompt_template_encode_suffix, start


FAMILY = Family(
    name="krea2",
    title="Krea 2",
    adapter="diffrl.models.families.krea2:Krea2Adapter",
    pipelines=("Krea2Pipeline",),
    lora_targets=("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_gate", "attn.to_out.0"),
    exclude=("img_in", "txt_in", "time_embed", "time_mod_proj", "text_fusion.projector", "final_layer"),
    negative_prompt="",
    guidance_offset=-1.0,  # it is how often the difference is added to the prompt's own prediction
    masks_prompts=True,
    text_encoders=(TextEncoder("tokenizer", "Qwen3-VL", _text_length),),
)


class Krea2Adapter(PackedPictureAdapter):
    """A `Krea2Pipeline` as velocities over sigmas.

    `max_sequence_length` counts tokens of a prompt, the end of the chat template among them. All prompts are padded to
    it. Each token is as many vectors as layers are read, so a smaller number saves much memory too.
    """

    family = FAMILY

    def latent_sizes(self) -> tuple[int, int, int]:
        """Return side of the pipeline's own latents, side of a patch, channels before packing."""
        side = self.pipeline.patch_size
        return (
            STOCK_SIDE // self.pipeline.vae_scale_factor,
            side,
            self.pipeline.transformer.config.in_channels // side**2,
        )

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return states (B, L, layers, D) and masks (B, L) of prompts and of the negative prompt."""
        return self.encode_beside_empty(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        embeds, mask = self.pipeline.encode_prompt(
            prompts, device=self.placement.device, max_sequence_length=self.max_sequence_length
        )
        return {"prompt_embeds": embeds, "mask": mask}

    def text_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of one prompt's states and of its mask."""
        config, length = self.pipeline.transformer.config, self.max_sequence_length
        return {
            "prompt_embeds": (length, config["num_text_layers"], config["text_hidden_dim"]),
            "mask": (length,),
        }

    def sigmas(self, steps: int) -> Tensor:
        """Return evenly spaced levels, shifted by the number of picture tokens; see `shifted_sigmas`."""
        distilled = self.pipeline.config.is_distilled
        return shifted_sigmas(self.pipeline.scheduler, steps, self.tokens, DISTILLED_SHIFT if distilled else None)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, h w / 4, 4 C)."""
        embeds, device, side = conditioning["prompt_embeds"], latents.device, self.pipeline.patch_size
        _, rows, columns = self.latent_shape
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma.to(self.dtype),
            encoder_hidden_states=embeds,
            encoder_attention_mask=conditioning["mask"],
            position_ids=self.kept(
                (embeds.shape[1], device),
                lambda: self.pipeline.prepare_position_ids(embeds.shape[1], rows // side, columns // side, device),
            ),
            return_dict=False,
        )[0]
        return output

    def unpack(self, latents: Tensor) -> Tensor:
        """Return (B, h w / 4, 4 C) to (B, C, 1, h, w)."""
        unpacked: Tensor = self.pipeline._unpack_latents(latents, self.height, self.width)
        return unpacked


TINY_SETTINGS = {"max_sequence_length": 20, "height": 32, "width": 32}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `Krea2Pipeline` for 32 x 32 pictures, which reads three layers of its text encoder."""
    from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
    from torch import nn

    from diffrl.models import tiny
    from diffrl.models.families.qwen_image import TEMPLATE

    tokenizer = tiny.build_qwen_tokenizer(words, TEMPLATE)
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        timestep_embed_dim=32,
        text_hidden_dim=32,
        num_text_layers=3,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )
    for name, weight in transformer.named_parameters():
        if "scale_shift_table" in name or "norm" in name:  # all zeros where training begins
            nn.init.normal_(weight, std=0.1)
    return Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, max_image_seq_len=6400
        ),
        vae=tiny.build_qwen_vae(),
        text_encoder=tiny.build_qwen3_vl(len(tokenizer), layers=3).model,
        tokenizer=tokenizer,
        transformer=transformer,
        text_encoder_select_layers=(1, 2, 3),
    )
