"""Qwen-Image: prompts in a chat template, packed latents (B, tokens, 64), CFG that keeps the prediction's length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from diffrl.models.adapter import Conditioning
from diffrl.models.family import JOINT_ATTENTION, Family, comfyui_as_diffusers
from diffrl.models.picture_adapters import PackedPictureAdapter
from diffrl.models.text_encoders import TextEncoder, plain_length

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NOTHING = " "
"""What the model's makers give as the negative prompt."""


def _text_length(tokenizer: Any, text: str) -> int:
    """Return tokens of a prompt in the stock pipeline's chat template, behind its beginning, which is cut off."""
    template, start = _template()
    return plain_length(tokenizer, template.format(text)) - start


@cache
def _template() -> tuple[str, int]:
    """Return the stock pipeline's chat template, and how many of its tokens are cut off."""
    from diffusers import QwenImagePipeline

    stock = QwenImagePipeline(None, None, None, None, None)
    return stock.prompt_template_encode, stock.prompt_template_encode_start_idx


FAMILY = Family(
    name="qwen_image",
    title="Qwen-Image",
    adapter="diffrl.models.families.qwen_image:QwenImageAdapter",
    pipelines=("QwenImagePipeline",),
    lora_targets=JOINT_ATTENTION[:-1],  # without to_add_out: the last block's feeds nothing, which DDP refuses
    negative_prompt=NOTHING,
    stock_options=(("negative_prompt", NOTHING),),
    guidance_argument="true_cfg_scale",
    masks_prompts=True,
    idle_weights=True,  # of the last block's text half
    exclude=("img_in", "txt_in", "time_text_embed", "img_mod", "txt_mod", "norm_out", "proj_out"),
    comfyui=comfyui_as_diffusers,
    text_encoders=(TextEncoder("tokenizer", "Qwen2.5-VL", _text_length),),
)


class QwenImageAdapter(PackedPictureAdapter):
    """A `QwenImagePipeline` as velocities over sigmas.

    `max_sequence_length` counts tokens of a prompt, the end of the chat template among them. All prompts are padded to
    it, so a smaller number makes every step cheaper.
    """

    family = FAMILY

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
    ):
        from diffrl.models.qwen_attention import MaskedAttention

        super().__init__(pipeline, dtype, height, width, max_sequence_length)
        pipeline.transformer.set_attn_processor(MaskedAttention())

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, D), zeros after their ends, and masks (B, L), of prompts and the negative prompt."""
        return self.encode_beside_empty(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        """Return the stock encoding, as long as the longest of `prompts`, padded to `max_sequence_length`."""
        embeds, mask = self.pipeline.encode_prompt(
            prompts, device=self.placement.device, max_sequence_length=self.max_sequence_length
        )
        mask = embeds.new_ones(embeds.shape[:2]) if mask is None else mask  # None: nothing of it is padding
        return self.padded(embeds, mask)

    def padded(self, embeds: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return embeddings (B, L, D) and masks (B, L), padded to `max_sequence_length` or cut there."""
        from torch.nn.functional import pad

        missing = self.max_sequence_length - embeds.shape[1]
        return {"prompt_embeds": pad(embeds, (0, 0, 0, missing)), "mask": pad(mask.bool(), (0, missing))}

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, h w / 4, 4 C)."""
        _, rows, columns = self.latent_shape
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma,
            encoder_hidden_states=conditioning["prompt_embeds"],
            attention_kwargs={"text_mask": conditioning["mask"]},
            img_shapes=[[(1, rows // 2, columns // 2)] * (latents.shape[1] // self.tokens)] * len(latents),
            return_dict=False,
        )[0]
        return output

    def guide(self, unconditional: Tensor, conditional: Tensor, guidance_scale: float) -> Tensor:
        """Guide without a classifier, each token scaled back to the length of the prompt's own prediction."""
        guided = super().guide(unconditional, conditional, guidance_scale)
        ratio: Tensor = conditional.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)
        return guided * ratio


TINY_SETTINGS = {"max_sequence_length": 20, "height": 32, "width": 32}

TEMPLATE = (
    "system Describe user assistant",  # these begin a line, so they have no space before them
    "the image by detailing color shape size texture quantity text spatial relationships of objects and background",
)
"""Words of the chat template that must be one token each: the pipeline cuts off its first 34 tokens by number."""


def build_tiny(words: Sequence[str], zero_cond_t: bool = False) -> Any:
    """Return a `QwenImagePipeline` for 32 x 32 pictures; each of `words` is a single token but for a prompt's first.

    Args:
        words: what prompts are made of.
        zero_cond_t: whether the network modulates the tokens of further images by the timestep 0.
    """
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )

    from diffrl.models import tiny

    tokenizer = tiny.build_qwen_tokenizer(words, TEMPLATE)
    shift = {"base_shift": 0.5, "max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02}
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **shift),
        vae=tiny.build_qwen_vae(),
        text_encoder=tiny.build_qwen_vl(len(tokenizer)),
        tokenizer=tokenizer,
        transformer=QwenImageTransformer2DModel(
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(4, 6, 6),
            zero_cond_t=zero_cond_t,
        ),
    )
