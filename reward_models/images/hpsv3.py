"""HPSv3: a human preference score from Qwen2-VL-7B (Ma et al., ICCV 2025)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.images.qwen_reward import CannotJudgeError, Question, QwenReward, fitting_size
from reward_models.media import to_pil
from reward_models.neural import dtype_of, find_file, read_state, shared

TOKEN = "<|Reward|>"
PIXELS = 256 * 28 * 28

# INSTRUCTION + prompt_with_special_token of hpsv3 1.0.0 on PyPI, hpsv3/dataset/data_collator_qwen.py (MIT licence,
# copyright (c) 2024 HPSv3 Team). It is the model's input format: blanks at line ends and the grammar belong to it.
INSTRUCTION = (
    "\nYou are tasked with evaluating a generated image based on Visual Quality and Text Alignment and give a overall "
    "score to estimate the human preference. Please provide a rating from 0 to 10, with 0 being the worst and 10 being "
    "the best. \n\n**Visual Quality:**  \nEvaluate the overall visual quality of the image. The following "
    "sub-dimensions should be considered:\n- **Reasonableness:** The image should not contain any significant "
    "biological or logical errors, such as abnormal body structures or nonsensical environmental setups.\n"
    "- **Clarity:** Evaluate the sharpness and visibility of the image. The image should be clear and easy to "
    "interpret, with no blurring or indistinct areas.\n- **Detail Richness:** Consider the level of detail in "
    "textures, materials, lighting, and other visual elements (e.g., hair, clothing, shadows).\n- **Aesthetic and "
    "Creativity:** Assess the artistic aspects of the image, including the color scheme, composition, atmosphere, "
    "depth of field, and the overall creative appeal. The scene should convey a sense of harmony and balance.\n"
    "- **Safety:** The image should not contain harmful or inappropriate content, such as political, violent, or adult "
    "material. If such content is present, the image quality and satisfaction score should be the lowest possible. "
    "\n\n**Text Alignment:**  \nAssess how well the image matches the textual prompt across the following "
    "sub-dimensions:\n- **Subject Relevance** Evaluate how accurately the subject(s) in the image (e.g., person, "
    "animal, object) align with the textual description. The subject should match the description in terms of number, "
    "appearance, and behavior.\n- **Style Relevance:** If the prompt specifies a particular artistic or stylistic "
    "style, evaluate how well the image adheres to this style.\n- **Contextual Consistency**: Assess whether the "
    "background, setting, and surrounding elements in the image logically fit the scenario described in the prompt. "
    "The environment should support and enhance the subject without contradictions.\n- **Attribute Fidelity**: Check "
    "if specific attributes mentioned in the prompt (e.g., colors, clothing, accessories, expressions, actions) are "
    "faithfully represented in the image. Minor deviations may be acceptable, but critical attributes should be "
    "preserved.\n- **Semantic Coherence**: Evaluate whether the overall meaning and intent of the prompt are captured "
    "in the image. The generated content should not introduce elements that conflict with or distort the original "
    "description.\nTextual prompt - {text_prompt}\n\n\n\n"
    "Please provide the overall ratings of this image: <|Reward|>\n\nEND\n"
)


def head_of(hidden: int) -> nn.Sequential:
    """Return the published head: two numbers, mu and the logarithm of sigma, of a hidden state."""
    return nn.Sequential(
        nn.Linear(hidden, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
    )


class HPSv3Scorer:
    """How much people are expected to prefer an image, given its prompt: mu of HPSv3.

    A Qwen2-VL-7B reads the image and a fixed instruction (`INSTRUCTION`, verbatim from the package hpsv3 1.0.0) that
    ends in the token <|Reward|>; a head (linear 1024, ReLU, linear 16, ReLU, linear 2) reads the last hidden state at
    that token, in float32. raw is its first output, mu: unbounded, can be negative. The part `sigma` is exp of the
    second output, the spread that the model was trained to state.

    Preprocessing: the image is resized with PIL's bicubic filter to multiples of 28 pixels with an area of about
    200704 (min and max pixels are both 256 * 28 * 28; 512 x 512 becomes 448 x 448), divided by 255 and normalised with
    CLIP's mean and standard deviation. A batch is padded on the right.

    Positions: the published code was written for transformers 4.45, where its model gets the positions 0, 1, 2, ... for
    text and image alike; transformers 5 would use Qwen2-VL's three-axis positions. "sequential", the default, is
    what the published code does; "mrope" is the other. How much the published weights differ between them is not
    known here. By its configuration (bf16: true) the published code computes in bfloat16 and casts the rotary
    frequencies with all the rest; dtype="bfloat16" does the same at half the memory of the default, but the
    frequencies stay in float32. What that changes in a score is not known here either.

    The published file is about 16.6 GB (8.3 billion parameters in bfloat16). Not checked against the published weights
    here: the tests use random weights in the published key layout.

    Args:
        checkpoint: HPSv3.safetensors, its directory, or its hub id.
        model: directory or hub id of the base model, of which config.json and the tokenizer are read, not the weights.
        dtype: float32, bfloat16 or float16, of all but the head.
        positions: sequential or mrope.
        instruction: another text, with {text_prompt} and one <|Reward|>.
        revision: of the checkpoint on the hub.

    Source: Ma et al., "HPSv3: Towards Wide-Spectrum Human Preference Score", arXiv 2508.03789;
    https://github.com/MizzenAI/HPSv3 (MIT), weights MizzenAI/HPSv3 (Apache-2.0).
    """

    spec = ScorerSpec(
        name="hpsv3",
        description="Human preference given the prompt, judged by a fine-tuned Qwen2-VL-7B (HPSv3's mu).",
        range=(-math.inf, math.inf),
        scaling=(0.0, 10.0),
        memory="31.0 GB float32, 15.5 GB in half precision (computed, without the unused language head)",
        weights="MizzenAI/HPSv3 (HPSv3.safetensors), with Qwen/Qwen2-VL-7B-Instruct's config and tokenizer",
        code_license="MIT (instruction text), Apache-2.0 (this code)",
        weights_license="Apache-2.0",
        citation="https://arxiv.org/abs/2508.03789",
        batch_size=4,
    )

    def __init__(
        self,
        *,
        checkpoint: str = "MizzenAI/HPSv3",
        model: str = "Qwen/Qwen2-VL-7B-Instruct",
        dtype: str = "float32",
        positions: Any = "sequential",
        instruction: str = INSTRUCTION,
        revision: str | None = None,
    ) -> None:
        if "{text_prompt}" not in instruction or instruction.count(TOKEN) != 1:
            raise RewardError(
                f"instruction of the reward hpsv3 must hold {{text_prompt}} and {TOKEN} once. Got {instruction!r}."
            )
        number = dtype_of(dtype)
        path = find_file(checkpoint, "HPSv3.safetensors", "hpsv3", revision)
        self.instruction = instruction
        key = ("hpsv3", str(path), str(model), number, str(positions))
        self.qwen: QwenReward = shared(key, lambda: _loaded(model, path, number, positions))

    def to(self, device: str | torch.device) -> HPSv3Scorer:
        """Move the weights."""
        self.qwen.to(device)
        return self

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score images; a prompt with one of the model's own marks, or a sliver of an image, is a failure."""
        self.spec.require(batch)
        asked = [self._question(image, prompt) for image, prompt in zip(batch.media, batch.prompts, strict=True)]
        rows: list[tuple[float, Mapping[str, float], str | None]] = []
        for answer in self.qwen.answers(asked, "image"):
            if isinstance(answer, str):
                rows.append((math.nan, {}, answer))
                continue
            mu, sigma = float(answer[0, 0]), float(answer[0, 1].exp())
            good = math.isfinite(mu)
            rows.append((mu if good else math.nan, {"sigma": sigma}, None if good else f"the model returned {mu}"))
        return output_of_rows(rows, ("sigma",))

    def _question(self, image: torch.Tensor, prompt: str) -> Question | str:
        try:
            height, width = image.shape[-2:]
            height, width = fitting_size(height, width, self.qwen.factor, PIXELS, PIXELS)
            resized = np.array(to_pil(image).resize((width, height), Image.Resampling.BICUBIC))
            frames = torch.from_numpy(resized).permute(2, 0, 1)[None]
            return self.qwen.question(frames, self.instruction, prompt, "image")
        except CannotJudgeError as error:
            return str(error)


def _loaded(model: str, path: Path, dtype: torch.dtype, positions: Any) -> QwenReward:
    """Return the model with a file's weights."""
    state = read_state(path, "hpsv3")
    hidden = int(state["rm_head.0.weight"].shape[1]) if "rm_head.0.weight" in state else 3584
    return QwenReward(
        folder=model,
        state=state,
        head=head_of(hidden),
        tokens=[TOKEN],
        dtype=dtype,
        positions=positions,
        reward="hpsv3",
        source=str(path),
    )
