"""CLIP models as two functions, of images and of prompts, whichever package runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from reward_models.base import RewardBatch
from reward_models.common.errors import RewardError
from reward_models.images.clip_preprocess import center_crop_of
from reward_models.media import to_pil
from reward_models.neural import inference, pretrained, require_package, shared


class Towers(Protocol):
    """A model that embeds images and prompts in one space."""

    device: torch.device

    def images(self, media: Tensor) -> Tensor:
        """Return embeddings (B, D) of uint8 images (B, 3, H, W); not normalised."""
        ...

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """Return embeddings (N, D) of N prompts; not normalised."""
        ...

    def to(self, device: str | torch.device) -> None:
        """Move the weights."""
        ...


def unit(embeddings: Tensor) -> Tensor:
    """Return embeddings at length 1, in float32 whatever the model computes in."""
    return functional.normalize(embeddings.float(), dim=-1)


def similarity(towers: Towers, batch: RewardBatch) -> Tensor:
    """Return cosines (B,) of each image with its prompt, float32. Equal prompts are embedded once."""
    row_of = {prompt: row for row, prompt in enumerate(dict.fromkeys(batch.prompts))}
    rows = [row_of[prompt] for prompt in batch.prompts]
    with inference(towers.device):
        return (unit(towers.images(batch.media)) * unit(towers.texts(list(row_of)))[rows]).sum(-1)


class TransformersClip:
    """A CLIP model in the transformers layout.

    Args:
        place: directory or hub id of the model.
        reward: for messages.
        dtype: of the weights and of the computation inside the model.
        processor: directory or hub id of tokenizer and preprocessor_config.json, if not those of `place`.
        text: False leaves out the text tower.

    Raises:
        RewardError: something cannot be loaded or does not fit together.
    """

    def __init__(
        self, source: str, reward: str, dtype: torch.dtype, processor: str | None = None, text: bool = True
    ) -> None:
        from transformers import AutoTokenizer, CLIPModel

        processor = processor or source
        # Named, because the default is the dtype of the file, in which exp(logit_scale) would be rounded.
        model = pretrained(CLIPModel, source, reward, dtype=torch.float32)
        self.crop = center_crop_of(processor, reward)
        expected = model.config.vision_config.image_size
        if self.crop.side != expected:
            raise RewardError(
                f"The processor must make images of the model's size. {processor} makes {self.crop.side} pixels, "
                f"{source} takes {expected}. Give the model's own processor."
            )
        self.scale = float(model.logit_scale.detach().exp())
        self.tokenizer = pretrained(AutoTokenizer, processor, reward) if text else None
        if self.tokenizer is None:
            del model.text_model, model.text_projection
        else:
            _check_tokenizer(self.tokenizer, model.config.text_config, processor, source)
        self.model = model.to(dtype).eval()
        self.dtype, self.device = dtype, torch.device("cpu")

    def images(self, media: Tensor) -> Tensor:
        """Return embeddings (B, D) of uint8 images (B, 3, H, W); not normalised."""
        pixels = self.crop(media).to(self.device, self.dtype)
        output: Tensor = self.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
        return output

    @property
    def text_limit(self) -> int | None:
        """Tokens of a prompt that are read; None without the text tower."""
        return None if self.tokenizer is None else int(self.model.config.text_config.max_position_embeddings)

    def text_length(self, prompt: str) -> int:
        """Return the tokens of a prompt, its start and end included."""
        return len(self.tokenizer(prompt, truncation=False, verbose=False)["input_ids"])

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """Return embeddings (N, D); longer prompts are cut to the context, their last token is the end token."""
        if self.tokenizer is None:
            raise ValueError("This model was loaded without its text tower.")
        tokens = self.tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=self.text_limit, return_tensors="pt"
        ).to(self.device)
        output: Tensor = self.model.get_text_features(
            input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, return_dict=True
        ).pooler_output
        return output

    def to(self, device: str | torch.device) -> None:
        """Move the weights."""
        self.device = torch.device(device)
        self.model.to(self.device)


def load_clip(
    source: str, reward: str, dtype: torch.dtype, processor: str | None = None, text: bool = True
) -> TransformersClip:
    """Return a `TransformersClip`; within `one_copy` the same one for all rewards that ask for the same."""
    key = ("clip", str(source), dtype, str(processor or source), text)
    made: TransformersClip = shared(key, lambda: TransformersClip(source, reward, dtype, processor, text))
    return made


def _check_tokenizer(tokenizer: Any, config: Any, processor: str, source: str) -> None:
    """Require the model's end token, where a text is read: with a foreign one all prompts would be equal."""
    # Early configurations say 2, whatever their tokenizer; transformers then reads at the largest token number.
    end = len(tokenizer) - 1 if config.eos_token_id == 2 else config.eos_token_id
    if len(tokenizer) > config.vocab_size or tokenizer.eos_token_id != end:
        raise RewardError(
            f"The tokenizer must be the model's. That of {processor} has {len(tokenizer)} tokens and ends texts with "
            f"{tokenizer.eos_token_id}; {source} has {config.vocab_size} and expects {end}. Give the "
            "model's own."
        )


class OpenClip:
    """A model of the open_clip package.

    Args:
        model: with float32 weights.
        tokenizer: of N prompts, makes token numbers (N, length).
        transform: of uint8 images (B, 3, H, W), makes what the model takes.
        dtype: to compute in.
    """

    def __init__(self, model: Any, tokenizer: Any, transform: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        self.model = model.to(dtype).eval()
        self.tokenizer, self.transform = tokenizer, transform
        self.dtype, self.device = dtype, torch.device("cpu")

    def images(self, media: Tensor) -> Tensor:
        """Return embeddings (B, D) of uint8 images (B, 3, H, W); not normalised."""
        output: Tensor = self.model.encode_image(self.transform(media).to(self.device, self.dtype))
        return output

    @property
    def text_limit(self) -> int | None:
        """Tokens of a prompt that are read."""
        return getattr(self.tokenizer, "context_length", None)

    def text_length(self, prompt: str) -> int:
        """Return the tokens of a prompt, its start and end included."""
        inner = getattr(self.tokenizer, "tokenizer", None)  # of transformers; open_clip's own has none
        return len(inner(prompt)["input_ids"]) if inner is not None else len(self.tokenizer.encode(prompt)) + 2

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """Return embeddings (N, D); longer prompts are cut to the context, their last token is the end token."""
        output: Tensor = self.model.encode_text(self.tokenizer(list(prompts)).to(self.device))
        return output

    def to(self, device: str | torch.device) -> None:
        """Move the weights."""
        self.device = torch.device(device)
        self.model.to(self.device)


def load_open_clip(name: str, weights: str | None, reward: str, dtype: torch.dtype) -> OpenClip:
    """Return a model of open_clip with its own preprocessing.

    Args:
        name: as open_clip lists it, or "hf-hub:OWNER/NAME" or "local-dir:PATH", which bring their weights.
        weights: open_clip's tag, or a file.
        reward: for messages.
        dtype: to compute in.

    Raises:
        RewardError: open_clip is missing, does not know the name or the tag, or cannot load the weights.
    """
    require_package("open_clip", "clip", reward)
    import open_clip  # type: ignore[import-untyped]

    if not name.startswith(("hf-hub:", "local-dir:")):
        _check_names(name, weights, reward)
    elif weights is not None:
        raise RewardError(f"{name} brings its own weights. Got pretrained={weights!r} as well. Leave it out.")
    try:
        model, preprocess = open_clip.create_model_from_pretrained(name, weights)
        tokenizer = open_clip.get_tokenizer(name)
    except Exception as error:  # open_clip raises RuntimeError, FileNotFoundError, ValueError and the hub's own
        first = (str(error).splitlines() or [repr(error)])[0]
        raise RewardError(f"open_clip cannot load {name} with {weights} for the reward {reward}: {first}") from error

    def transform(media: Tensor) -> Tensor:
        return torch.stack([preprocess(to_pil(image)) for image in media])

    return OpenClip(model, tokenizer, transform, dtype)


def _check_names(name: str, weights: str | None, reward: str) -> None:
    """Refuse unknown names, missing weights, and weights whose activation is not the architecture's."""
    import open_clip

    config = open_clip.get_model_config(name)
    if config is None:
        raise RewardError(
            f"open_clip has no model {name!r}, which the reward {reward} was given. "
            "Its names: python -c 'import open_clip; print(open_clip.list_models())'."
        )
    tags = open_clip.list_pretrained_tags_by_model(name)
    if weights is None:
        raise RewardError(
            f"A model of open_clip needs pretrained=TAG or a file of weights. Got none for {name}. "
            f"Its tags: {', '.join(tags) or 'none, so give a file'}."
        )
    if open_clip.get_pretrained_cfg(name, weights).get("quick_gelu", False) and not config.get("quick_gelu", False):
        raise RewardError(
            f"The weights {weights} were trained with QuickGELU, which {name} does not have: scores would be wrong. "
            f"Use model='{name}-quickgelu'."
        )
