"""Z-Image: prompts of their own lengths in a chat template, latents (B, 16, h, w), classifier-free guidance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning
from diffrl.models.family import Family, comfyui_as_diffusers
from diffrl.models.picture_adapters import PictureAdapter
from diffrl.models.schedulers import shifted_sigmas
from diffrl.models.text_encoders import TextEncoder, chat_length

if TYPE_CHECKING:
    from torch import Tensor

STOCK_SIDE = 1024
"""Height and width that the stock call takes, in pixels."""

GRAIN = 32
"""The network fills up the tokens of a text, and those of a picture, to a multiple of this."""


BLOCK = {
    "attention.qkv": ("attention.to_q", "attention.to_k", "attention.to_v"),
    "attention.out": ("attention.to_out.0",),
}
ENDS = {
    "x_embedder": ("all_x_embedder.2-1",),
    "final_layer.linear": ("all_final_layer.2-1.linear",),
    "final_layer.adaLN_modulation.1": ("all_final_layer.2-1.adaLN_modulation.1",),
}

FAMILY = Family(
    name="z_image",
    title="Z-Image",
    adapter="diffrl.models.families.z_image:ZImageAdapter",
    pipelines=("ZImagePipeline",),
    negative_prompt="",
    exclude=("t_embedder", "cap_embedder", "all_x_embedder", "all_final_layer", "adaLN_modulation"),
    guidance_offset=-1.0,  # it is how often the difference is added to the prompt's own prediction
    masks_prompts=True,
    comfyui=comfyui_as_diffusers,
    original={name: (name, BLOCK) for name in ("layers", "noise_refiner", "context_refiner")} | {"": ("", ENDS)},
    text_encoders=(TextEncoder("tokenizer", "Qwen3", partial(chat_length, enable_thinking=True)),),
)


class ZImageAdapter(PictureAdapter):
    """A `ZImagePipeline` as velocities over sigmas.

    `max_sequence_length` counts tokens of a prompt, those of the chat template among them. The network gets every
    prompt at its own length, so a large number costs nothing but the memory of encodings.
    """

    family = FAMILY
    text_width = "cap_feat_dim"

    def latent_sizes(self) -> tuple[int, int, int]:
        """Return side of the pipeline's own latents, side of a patch, channels."""
        return STOCK_SIDE // self.pipeline.vae_scale_factor, 2, self.pipeline.transformer.config.in_channels

    def require_size(self, patch: int) -> None:
        """Require what any image needs, and tables of positions that reach to the last token.

        Raises:
            ConfigError: they do not; the network would stop in the middle of a run.
        """
        super().require_size(patch)
        places, *sides = self.pipeline.transformer.config.axes_lens
        longest = (places - 2) // GRAIN * GRAIN  # positions begin at 1, and the picture's own comes after the text's
        if self.max_sequence_length > longest:
            raise ConfigError(
                f"model.max_sequence_length must be <= {longest}, the positions that this network has for a text. Got "
                f"{self.max_sequence_length}. Lower it."
            )
        if self.height > sides[0] * patch or self.width > sides[1] * patch:
            raise ConfigError(
                f"model.height and model.width must be <= {sides[0] * patch} and {sides[1] * patch}, the positions "
                f"that this network has. Got {self.height} x {self.width}. Lower them."
            )

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Return embeddings (B, L, D), zeros after their ends, and masks (B, L), of prompts and the empty prompt."""
        with self.on_device("text_encoder") as device:
            embeds, empty = self.pipeline.encode_prompt(
                list(prompts),
                device=device,
                negative_prompt=[self.negative_prompt] * len(prompts),
                do_classifier_free_guidance=not self.empty_prompt_cached,
                max_sequence_length=self.max_sequence_length,
            )
            return self.with_empty(self._rows(embeds), self._rows(empty) if empty else {})

    def _rows(self, texts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return texts (L_i, D) of any lengths, padded to `max_sequence_length`."""
        import torch

        embeds = texts[0].new_zeros(len(texts), self.max_sequence_length, texts[0].shape[-1])
        mask = torch.zeros(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        for i, text in enumerate(texts):
            embeds[i, : len(text)] = text
            mask[i, : len(text)] = True
        return {"prompt_embeds": embeds, "mask": mask}

    def sigmas(self, steps: int) -> Tensor:
        """Return evenly spaced levels, shifted as the scheduler says; see `shifted_sigmas`."""
        return shifted_sigmas(self.pipeline.scheduler, steps, self.tokens)

    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return a velocity (B, C, h, w); the network takes lists of one image and one text, predicts image - noise."""
        import torch

        lengths = conditioning["mask"].sum(dim=1).tolist()
        texts = [row[:length] for row, length in zip(conditioning["prompt_embeds"], lengths, strict=True)]
        output = self.transformer(list(latents.unsqueeze(2)), 1.0 - sigma, texts, return_dict=False)[0]
        return -torch.stack(output).squeeze(2)


TINY_SETTINGS = {"max_sequence_length": 48, "height": 32, "width": 32}


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `ZImagePipeline` for 32 x 32 pictures; each of `words` after a space is a single token."""
    from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
    from torch import nn

    from diffrl.models import tiny

    tokenizer = tiny.build_qwen_tokenizer(words)
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=32,
        axes_dims=[4, 6, 6],
        axes_lens=[128, 16, 16],
    )
    for filler in (transformer.x_pad_token, transformer.cap_pad_token):
        nn.init.normal_(filler)
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
        vae=tiny.build_vae((8, 8, 16), norm_num_groups=4, scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=tiny.build_qwen3(len(tokenizer)).model,
        tokenizer=tokenizer,
        transformer=transformer,
    )
