"""What reward models on Qwen2-VL share: images to patches, the chat text, loading, and a head at special tokens.

Both published models (HPSv3, VideoAlign) are Qwen2-VL with a new token in the question; a small head reads the last
hidden state at that token. Their checkpoints carry the key names of transformers 4.45; this file gives them those of
transformers 5 and computes the rest itself, so that no image processor's defaults can change a score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reward_models.common.errors import RewardError
from reward_models.neural import inference, load_strict, pretrained

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of Qwen2-VL's image processor (CLIP's), for RGB in [0, 1]."""
MOST_ELONGATED = 200
"""Qwen2-VL refuses images whose longer side is more than this many times the shorter one."""
UNUSED = ("lm_head.weight",)
"""In the published files, but not read by a reward head."""


class CannotJudgeError(ValueError):
    """One sample cannot be scored; the others can."""


@dataclass(frozen=True)
class Question:
    """One sample as the model reads it.

    Args:
        ids: L token ids.
        pixels: (P, D) float32 patches.
        grid: frames, rows and columns of patches; their product is P.
    """

    ids: list[int]
    pixels: Tensor
    grid: tuple[int, int, int]


def fitting_size(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Return Qwen2-VL's size: multiples of `factor`, the area in [least, most], about the same shape.

    As `smart_resize` of qwen-vl-utils. Both sides are rounded to the factor; if the area is then too large they are
    floored after scaling by sqrt(most / area), if too small they are ceiled after sqrt(least / area), so that the
    result can exceed `most` where `least == most`.

    Args:
        height: in pixels, as is width.
        width: in pixels.
        factor: patch size times merge size, 28 for the published models.
        least: pixels.
        most: pixels.

    Raises:
        CannotJudgeError: one side is more than 200 times the other.
    """
    if max(height, width) > MOST_ELONGATED * min(height, width):
        raise CannotJudgeError(
            f"{height} x {width} pixels are too elongated for Qwen2-VL (at most {MOST_ELONGATED} to 1)"
        )
    sides = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if math.prod(sides) > most:
        shrink = math.sqrt(height * width / most)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif math.prod(sides) < least:
        grow = math.sqrt(least / (height * width))
        sides = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return sides[0], sides[1]


def patches_of(frames: Tensor, size: int, merge: int, depth: int) -> tuple[Tensor, tuple[int, int, int]]:
    """Return normalised patches in the order in which Qwen2-VL's vision tower merges them.

    Args:
        frames: (F, 3, H, W) in [0, 255], any dtype; H and W multiples of size * merge. A single frame is repeated.
        size: side of a patch in pixels.
        merge: patches a side that become one token.
        depth: frames that a patch spans; the last frame is repeated until they fit.

    Returns:
        (P, 3 * depth * size * size) float32 and the grid (frames, rows, columns) of patches.
    """
    if missing := -len(frames) % depth:
        frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    pixels = (frames.float() / 255 - mean) / std
    count, _, height, width = pixels.shape
    grid = (count // depth, height // size, width // size)
    blocks = pixels.view(grid[0], depth, 3, grid[1] // merge, merge, size, grid[2] // merge, merge, size)
    # (frames, rows, columns, row in block, column in block, channel, frame in patch, y, x)
    return blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(math.prod(grid), -1), grid


def current_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names that transformers 5 gives them; names that are already new stay.

    `visual.` becomes `model.visual.`, and `model.` becomes `model.language_model.`.
    """
    renamed = {}
    for name, tensor in state.items():
        new = re.sub(r"^visual\.", "model.visual.", name)
        renamed[re.sub(r"^model\.(?!language_model\.|visual\.)", "model.language_model.", new)] = tensor
    return renamed


class QwenReward(nn.Module):
    """Qwen2-VL with a float32 head that is read at special tokens.

    Args:
        place: directory or hub id of the base model; only its configuration and its tokenizer are read.
        state: the checkpoint's tensors, in old or new names, with the head under `rm_head.`.
        head: gets the weights `rm_head.`; stays in float32.
        tokens: special tokens, added to the tokenizer in this order and read in this order.
        dtype: of everything but the head.
        positions: "sequential": 0, 1, 2, ... for all tokens, as the published code runs under transformers 4.45;
            "mrope": Qwen2-VL's own positions in three axes.
        reward: for messages.
        source: the file, for messages.

    Raises:
        RewardError: the weights do not fit, or there is no such base model.
    """

    def __init__(
        self,
        folder: str,
        state: Mapping[str, Tensor],
        head: nn.Module,
        tokens: Sequence[str],
        *,
        dtype: torch.dtype,
        positions: Literal["sequential", "mrope"],
        reward: str,
        source: str,
    ) -> None:
        super().__init__()
        if positions not in ("sequential", "mrope"):
            raise RewardError(f"positions must be sequential or mrope. Got {positions!r}.")
        from transformers import AutoConfig, AutoTokenizer

        config = pretrained(AutoConfig, folder, reward)
        if getattr(config, "model_type", "") != "qwen2_vl":
            raise RewardError(f"The reward {reward} needs a Qwen2-VL base model. {folder} is {config.model_type}.")
        self.tokenizer = pretrained(AutoTokenizer, folder, reward)
        self.tokenizer.add_tokens(list(tokens), special_tokens=True)
        self.tokens = tuple(tokens)
        self.token_ids = [self.tokenizer.convert_tokens_to_ids(token) for token in tokens]
        self.positions = positions
        state = current_names(state)
        rows = len(state.get("model.language_model.embed_tokens.weight", ()))
        if 0 < rows < len(self.tokenizer):
            raise RewardError(
                f"{source} has {rows} token embeddings, but the tokenizer of {folder} with the tokens of the reward "
                f"{reward} has {len(self.tokenizer)} tokens. Give the base model that it was trained from."
            )
        config.text_config.vocab_size = rows or len(self.tokenizer)
        self.config, self.rm_head = config, head.float()
        self.model = _load(config, head, state, dtype, reward, source)
        self.requires_grad_(False).eval()

    @property
    def factor(self) -> int:
        """Sides of images must be multiples of this."""
        vision = self.config.vision_config
        return int(vision.patch_size) * int(vision.spatial_merge_size)

    def question(self, frames: Tensor, text: str, prompt: str, kind: Literal["image", "video"]) -> Question:
        """Return the chat `<image> text` by Qwen2-VL's template, with the prompt in place of {text_prompt}.

        Args:
            frames: (F, 3, H, W) in [0, 255], of a fitting size.
            text: of the user's turn, with the special tokens and {text_prompt}.
            prompt: of the sample.
            kind: which of the model's placeholder tokens stands for the frames.

        Raises:
            CannotJudgeError: the prompt holds a token of the model's own, which would be read as one.
        """
        reserved = {*self.tokenizer.all_special_tokens, *self.tokenizer.get_added_vocab()}
        if marks := sorted(token for token in reserved if token and token in prompt):
            raise CannotJudgeError(f"the prompt holds {marks[0]}, which the model reads as a mark of its own")
        vision = self.config.vision_config
        pixels, grid = patches_of(
            frames, int(vision.patch_size), int(vision.spatial_merge_size), int(vision.temporal_patch_size)
        )
        places = math.prod(grid) // int(vision.spatial_merge_size) ** 2
        chat = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n<|vision_start|>{f'<|{kind}_pad|>' * places}<|vision_end|>"
            f"{text.replace('{text_prompt}', prompt)}<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = list(self.tokenizer(chat, add_special_tokens=False)["input_ids"])
        pad = self.config.image_token_id if kind == "image" else self.config.video_token_id
        if ids.count(pad) != places or any(ids.count(token) != 1 for token in self.token_ids):
            raise RewardError(
                f"The tokenizer must know <|{kind}_pad|> and read {', '.join(self.tokens)} once each. It does not: "
                "this is not the tokenizer of a Qwen2-VL model."
            )
        return Question(ids, pixels, grid)

    def forward(self, questions: Sequence[Question], kind: Literal["image", "video"]) -> Tensor:
        """Return the head's outputs at the special tokens.

        Args:
            questions: B of them.
            kind: of all of them.

        Returns:
            (B, tokens, outputs of the head) float32.
        """
        device = self.model.device
        length = max(len(question.ids) for question in questions)
        # Padding is on the right, where no token before it sees it: a sample's last token is as good as any.
        ids = torch.tensor([question.ids + question.ids[-1:] * (length - len(question.ids)) for question in questions])
        mask = torch.arange(length) < torch.tensor([[len(question.ids)] for question in questions])
        inputs: dict[str, Any] = {
            "input_ids": ids.to(device),
            "attention_mask": mask.long().to(device),
            "use_cache": False,
        }
        pixels = torch.cat([question.pixels for question in questions]).to(device)
        grids = torch.tensor([question.grid for question in questions], device=device)
        inputs |= (
            {"pixel_values": pixels, "image_grid_thw": grids}
            if kind == "image"
            else {"pixel_values_videos": pixels, "video_grid_thw": grids}
        )
        if self.positions == "sequential":
            inputs["position_ids"] = torch.arange(length, device=device).expand(3, len(questions), length)
        else:
            pad = self.config.image_token_id if kind == "image" else self.config.video_token_id
            inputs["mm_token_type_ids"] = ((ids == pad).int() * (1 if kind == "image" else 2)).to(device)
        hidden = self.model(**inputs).last_hidden_state
        places = [[question.ids.index(token) for token in self.token_ids] for question in questions]
        rows = torch.arange(len(questions), device=device)[:, None]
        at_tokens = hidden[rows, torch.tensor(places, device=device)]
        result: Tensor = self.rm_head(at_tokens.float())
        return result

    def answers(self, asked: Sequence[Question | str], kind: Literal["image", "video"]) -> list[Tensor | str]:
        """Return outputs (tokens, outputs) on the CPU of those samples that are questions; the reasons of others stay.

        Args:
            asked: questions, or why a sample has none.
            kind: of all questions.
        """
        questions = [item for item in asked if isinstance(item, Question)]
        if not questions:
            return [str(item) for item in asked]
        with inference(self.model.device):
            scores = iter(self(questions, kind).cpu())
        return [next(scores) if isinstance(item, Question) else item for item in asked]


def _load(
    config: Any, head: nn.Module, state: Mapping[str, Tensor], dtype: torch.dtype, reward: str, source: str
) -> Any:
    """Fill the head, and return Qwen2-VL without its language head, with exactly these weights."""
    from transformers import Qwen2VLModel

    with torch.device("meta"):
        skeleton = nn.ModuleDict({"model": Qwen2VLModel(config)})
    skeleton["rm_head"] = head
    shapes = {name: tensor.to("meta") if name.startswith("model.") else tensor for name, tensor in state.items()}
    load_strict(skeleton, shapes, reward, UNUSED, source)
    # Through from_pretrained, which makes no random weights first and keeps rotary frequencies in float32.
    inner = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    return Qwen2VLModel.from_pretrained(None, config=config, state_dict=inner, dtype=dtype, use_safetensors=True)
