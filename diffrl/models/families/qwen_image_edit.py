"""Qwen-Image-Edit (2509, 2511): Qwen-Image that edits an image, which its text encoder and its network both see."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning
from diffrl.models.editing import PackedEditingAdapter
from diffrl.models.families import qwen_image
from diffrl.models.pipeline import EMPTY
from diffrl.models.text_encoders import TextEncoder, plain_length

if TYPE_CHECKING:
    from torch import Tensor

STOCK = "diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus"
"""Module of the stock pipeline, which holds the sizes that it scales a source to."""


def _text_length(processor: Any, text: str) -> int:
    """Return tokens of a prompt and of a square image in the chat template, behind its beginning, which is cut off."""
    template, start, side = _template()
    shown = "Picture 1: <|vision_start|><|image_pad|><|vision_end|>"
    return plain_length(processor.tokenizer, template.format(shown + text)) + _image_tokens(processor, side) - start


@cache
def _template() -> tuple[str, int, int]:
    """Return the stock chat template, how many of its tokens are cut off, and the side of the image it shows."""
    from diffusers import QwenImageEditPlusPipeline

    stock = QwenImageEditPlusPipeline(None, None, None, None, None, None)
    side = round(importlib.import_module(STOCK).CONDITION_IMAGE_SIZE ** 0.5)
    return stock.prompt_template_encode, stock.prompt_template_encode_start_idx, side


@lru_cache(maxsize=8)
def _image_tokens(processor: Any, side: int) -> int:
    """Return tokens that a square image adds to its one placeholder."""
    from PIL import Image

    made = processor(text=["<|image_pad|>"], images=[Image.new("RGB", (side, side))])
    return len(made["input_ids"][0]) - 1


FAMILY = replace(
    qwen_image.FAMILY,
    name="qwen_image_edit",
    title="Qwen-Image-Edit",
    packages=("torchvision",),  # with which transformers prepares images for the text encoder
    adapter="diffrl.models.families.qwen_image_edit:QwenImageEditAdapter",
    pipelines=("QwenImageEditPlusPipeline",),
    edits=True,
    empty_sees_source=True,
    text_encoders=(TextEncoder("processor", "Qwen2.5-VL", _text_length),),
)


class QwenImageEditAdapter(PackedEditingAdapter, qwen_image.QwenImageAdapter):
    """A `QwenImageEditPlusPipeline` with one image a prompt as velocities over sigmas.

    The network sees the image at the size that is drawn; the stock pipeline scales it to about 1024 x 1024 whatever is
    drawn. The text encoder sees it at about 384 x 384, as the stock pipeline has it.

    `max_sequence_length` counts all tokens behind the beginning of the chat template: those of the image (196 of a
    square one) and of the prompt. The stock pipeline takes as many as there are. All prompts are padded to it.
    """

    family = FAMILY

    def encode_words(self, prompts: Sequence[str], sources: Sequence[Tensor]) -> Conditioning:
        """Encode prompts and negative prompts beside their images."""
        import torch

        with self.on_device("text_encoder"):
            pairs = [(text, self._shown(source)) for text, source in zip(prompts, sources, strict=True)]
            rows = [self._encode_pair(text, image) for text, image in pairs]
            empty = [self._encode_pair(self.negative_prompt, image) for _, image in pairs]
        return {
            **{name: torch.cat([row[name] for row in rows]) for name in rows[0]},
            **{EMPTY + name: torch.cat([row[name] for row in empty]) for name in empty[0]},
        }

    def encoder_input(self, pixels: Tensor) -> Tensor:
        """Return one frame: (1, 3, 1, H, W)."""
        return pixels.unsqueeze(2)

    def _shown(self, source: Tensor) -> Any:
        """Return the image for the text encoder, in the ratio of the output, so that all take as many tokens."""
        from reward_models.media import to_pil

        stock = importlib.import_module(STOCK)
        width, height = stock.calculate_dimensions(stock.CONDITION_IMAGE_SIZE, self.width / self.height)
        return self.pipeline.image_processor.resize(to_pil(source), height, width)

    def _encode_pair(self, text: str, image: Any) -> dict[str, Tensor]:
        """Return the stock encoding of one prompt and its image, padded to `max_sequence_length` or cut there."""
        embeds, _ = self.pipeline.encode_prompt([text], image=[image], device=self.placement.device)
        if text == self.negative_prompt and embeds.shape[1] > self.max_sequence_length:
            raise ConfigError(
                "model.max_sequence_length must hold the image and its frame, with the negative prompt "
                f"{embeds.shape[1]} tokens, and the prompt's. Got {self.max_sequence_length}."
            )
        return self.padded(embeds, embeds.new_ones(embeds.shape[:2]))

    def stock_call(self) -> Mapping[str, Any]:
        """Return the size that is drawn; what a source is scaled to, `stock_preparation` says."""
        return {"height": self.height, "width": self.width}

    def stock_preparation(self) -> str:
        """Return code that has the stock pipeline scale a source to the size of the output."""
        return f"\nimport {STOCK} as stock\nstock.VAE_IMAGE_SIZE = {self.height} * {self.width}"


TINY_SETTINGS = {**qwen_image.TINY_SETTINGS, "max_sequence_length": 40}

TEMPLATE = (
    "system Describe user assistant Picture color , . ), 's",
    "the key features of input image ( shape size texture objects background then explain how user text instruction "
    "should alter or modify Generate a new that meets requirements while maintaining consistency with original where "
    "appropriate",
)
"""Pieces of the chat template that must be one token each: the pipeline cuts off its first 64 tokens by number."""

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def token_ids(tokenizer: Any) -> dict[str, int]:
    """Return the ids of the tokens that stand for pictures, as a text encoder's config names them."""
    return {
        f"{name.strip('<|>').removesuffix('_pad')}_token_id": tokenizer.convert_tokens_to_ids(name) for name in VISION
    }


def build_tiny(words: Sequence[str]) -> Any:
    """Return a `QwenImageEditPlusPipeline` for 32 x 32 pictures, its source's tokens modulated apart as in 2511."""
    from diffusers import QwenImageEditPlusPipeline
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    from diffrl.models import tiny

    tokenizer = tiny.build_qwen_tokenizer(words, TEMPLATE, more=VISION)
    parts = qwen_image.build_tiny(words, zero_cond_t=True).components
    parts["tokenizer"] = tokenizer
    parts["text_encoder"] = tiny.build_qwen_vl(len(tokenizer), **token_ids(tokenizer))
    size = {"min_pixels": 28 * 28, "max_pixels": 60 * 60}  # four tokens of a square image, 196 of the published ones
    processor = Qwen2VLProcessor(Qwen2VLImageProcessor(**size), tokenizer, Qwen2VLVideoProcessor(**size))
    return QwenImageEditPlusPipeline(**parts, processor=processor)
