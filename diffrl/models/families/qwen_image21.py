"""Qwen-Image 2.1: text and picture in one causal sequence, packed latents (B, tokens, 64), pictures with an alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning
from diffrl.models.families.qwen_image_edit import VISION, token_ids
from diffrl.models.family import Family, comfyui_as_diffusers
from diffrl.models.picture_adapters import PackedPictureAdapter
from diffrl.models.text_encoders import TextEncoder, plain_length

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STOCK_SIDE = 1024
"""Height and width that the stock call takes, in pixels."""

SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
TEMPLATE = SYSTEM + "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
"""The stock pipeline's chat template for a text alone; the tokens of its first line are cut off."""


def _text_length(processor: Any, text: str) -> int:
    """Return tokens of a prompt in the stock pipeline's chat template, behind its beginning, which is cut off."""
    return plain_length(processor.tokenizer, TEMPLATE.format(text)) - plain_length(processor.tokenizer, SYSTEM)


FAMILY = Family(
    name="qwen_image21",
    title="Qwen-Image 2.1",
    adapter="diffrl.models.families.qwen_image21:QwenImage21Adapter",
    pipelines=("QwenImage21Pipeline",),
    exclude=("img_in", "txt_in", "time_text_embed", "modulation", "norm_out", "proj_out"),
    negative_prompt="",
    stock_options=(("negative_prompt", ""),),
    stock_lines=(("max_sequence_length", ""),),  # the stock pipeline has no such length: it cuts nothing
    guidance_argument="true_cfg_scale",
    masks_prompts=True,
    comfyui=comfyui_as_diffusers,
    text_encoders=(TextEncoder("processor", "Qwen3-VL", _text_length),),
    packages=("torchvision",),  # which the processor of its text encoder needs
)


class QwenImage21Adapter(PackedPictureAdapter):
    """A `QwenImage21Pipeline`, from text alone, as velocities over sigmas.

    `max_sequence_length` counts tokens of a prompt, the end of the chat template among them. All prompts are padded to
    it, and each is at the place that it has alone (`models.qwen_attention.OwnLengths`).
    """

    family = FAMILY
    text_width = "context_in_dim"

    def __init__(
        self,
        pipeline: Any,
        dtype: torch.dtype,
        height: int | None = None,
        width: int | None = None,
        max_sequence_length: int | None = None,
    ):
        from diffrl.models.qwen_attention import OwnLengths

        super().__init__(pipeline, dtype, height, width, max_sequence_length)
        self.tokens *= 4  # the network's are no patches, though the text encoder's places of a picture are
        if pipeline.config.sample_sigmas is not None:
            raise ConfigError(
                "model.path must be a pipeline without noise levels of its own (sample_sigmas in model_index.json), "
                "which a checkpoint distilled to few steps has. Take the model that it was distilled from."
            )
        pipeline.transformer.set_attn_processor(OwnLengths(pipeline.transformer.config.axes_dims_rope[0] // 2))

    def latent_sizes(self) -> tuple[int, int, int]:
        """Return side of the pipeline's own latents, side of what a size must be a multiple of, channels."""
        return STOCK_SIDE // self.pipeline.vae_scale_factor, 2, self.pipeline.transformer.config.in_channels

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, D), zeros after their ends, and masks (B, L), of prompts and the negative prompt."""
        return self.encode_beside_empty(prompts, self._encode)

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        """Return the stock encoding, as long as the longest of `prompts`, padded to `max_sequence_length` or cut."""
        from torch.nn.functional import pad

        embeds, mask, _ = self.pipeline.encode_prompt(prompts, device=self.placement.device)
        mask = embeds.new_ones(embeds.shape[:2]) if mask is None else mask  # None: nothing of it is padding
        missing = self.max_sequence_length - embeds.shape[1]
        return {"prompt_embeds": pad(embeds, (0, 0, 0, missing)), "mask": pad(mask.bool(), (0, missing))}

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return velocity (B, h w, C)."""
        _, rows, columns = self.latent_shape
        mask, count = conditioning["mask"], rows * columns
        places = mask.new_zeros(len(mask), mask.shape[1] + count // 4)  # one of a picture is 2 x 2 tokens
        places[:, mask.shape[1] :] = True
        output: Tensor = self.transformer(
            hidden_states=latents,
            timestep=sigma,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_mask=mask,
            img_shapes=[[(1, rows, columns)]] * len(latents),
            img_mask=places,
            return_dict=False,
        )[0]
        return output[:, -count:]

    def vae_input(self, pixels: Tensor) -> Tensor:
        """Return pixels (B, 3, H, W) as one frame with an alpha of 1, which is opaque: (B, 4, 1, H, W)."""
        import torch

        pixels = pixels.unsqueeze(2)
        return torch.cat([pixels, torch.ones_like(pixels[:, :1])], dim=1)

    def vae_output(self, latents: Tensor) -> Tensor:
        """Return what the decoder makes of latents, laid over white as its alpha says: (B, 3, F, H, W) in [-1, 1]."""
        decoded = super().vae_output(latents)
        opaque = (decoded[:, 3:] + 1) / 2
        return decoded[:, :3] * opaque + (1 - opaque)


TINY_SETTINGS = {"max_sequence_length": 24, "height": 32, "width": 32}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `QwenImage21Pipeline` for 32 x 32 pictures; each of `words` after a space is a single token."""
    from diffusers import (
        AutoencoderKLQwenImage21,
        FlowMatchEulerDiscreteScheduler,
        QwenImage21Pipeline,
        QwenImage21Transformer2DModel,
    )
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    from diffrl.models import tiny

    tokenizer = tiny.build_qwen_tokenizer(words, ("system user assistant", ""), more=VISION)
    line = "<|im_start|>{{ message.role }}\n{{ message.content[0].text }}<|im_end|>\n"
    chat = "{% for message in messages %}" + line + "{% endfor %}"
    shift = {"base_shift": 0.5, "max_shift": 0.9, "max_image_seq_len": 8192}
    return QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **shift),
        vae=AutoencoderKLQwenImage21(
            base_dim=8,
            decoder_base_dim=8,
            z_dim=4,
            dim_mult=[1, 1, 1, 2, 2],
            num_res_blocks=1,
            latents_mean=[-0.7571, 0.1075, 0.4134, -0.2921],
            latents_std=[2.8184, 1.4541, 2.3275, 1.916],
        ),
        text_encoder=tiny.build_qwen3_vl(len(tokenizer), **token_ids(tokenizer)),
        processor=Qwen3VLProcessor(Qwen2VLImageProcessor(), tokenizer, Qwen3VLVideoProcessor(), chat_template=chat),
        transformer=QwenImage21Transformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            context_in_dim=32,
            axes_dims_rope=(4, 6, 6),
        ),
    )
