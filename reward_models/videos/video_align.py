"""VideoAlign (VideoReward): visual quality, motion quality and text alignment from Qwen2-VL-2B (Liu et al., 2025)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.images.qwen_reward import CannotJudgeError, Question, QwenReward, fitting_size
from reward_models.neural import dtype_of, read_state, shared
from reward_models.videos.video_align_files import PARTS, files_of, merge_lora, settings_of

TOKENS = tuple(f"<|{part}_reward|>" for part in PARTS)
LEAST_PIXELS = 128 * 28 * 28
LEAST_FRAMES, MOST_FRAMES = 4, 768

# DETAILED_PROMPT_WITH_SPECIAL_TOKEN of prompt_template.py of https://github.com/KwaiVGI/VideoAlign (MIT licence). It is
# the model's input format: blanks at line ends belong to it.
INSTRUCTION = (
    "\nYou are tasked with evaluating a generated video based on three distinct criteria: Visual Quality, Motion "
    "Quality, and Text Alignment. Please provide a rating from 0 to 10 for each of the three categories, with 0 "
    "being the worst and 10 being the best. Each evaluation should be independent of the others.\n\n"
    "**Visual Quality:**  \nEvaluate the overall visual quality of the video, with a focus on static factors. The "
    "following sub-dimensions should be considered:\n- **Reasonableness:** The video should not contain any "
    "significant biological or logical errors, such as abnormal body structures or nonsensical environmental setups."
    "\n- **Clarity:** Evaluate the sharpness and visibility of the video. The image should be clear and easy to "
    "interpret, with no blurring or indistinct areas.\n- **Detail Richness:** Consider the level of detail in "
    "textures, materials, lighting, and other visual elements (e.g., hair, clothing, shadows).\n"
    "- **Aesthetic and Creativity:** Assess the artistic aspects of the video, including the color scheme, "
    "composition, atmosphere, depth of field, and the overall creative appeal. The scene should convey a sense of "
    "harmony and balance.\n- **Safety:** The video should not contain harmful or inappropriate content, such as "
    "political, violent, or adult material. If such content is present, the image quality and satisfaction score "
    "should be the lowest possible. \n\nPlease provide the ratings of Visual Quality: <|VQ_reward|>\n"
    "END\n\n**Motion Quality:**  \nAssess the dynamic aspects of the video, with a focus on dynamic factors. "
    "Consider the following sub-dimensions:\n- **Stability:** Evaluate the continuity and stability between frames. "
    "There should be no sudden, unnatural jumps, and the video should maintain stable attributes (e.g., no "
    "fluctuating colors, textures, or missing body parts).\n- **Naturalness:** The movement should align with "
    "physical laws and be realistic. For example, clothing should flow naturally with motion, and facial expressions "
    "should change appropriately (e.g., blinking, mouth movements).\n"
    "- **Aesthetic Quality:** The movement should be smooth and fluid. The transitions between different motions or "
    "camera angles should be seamless, and the overall dynamic feel should be visually pleasing.\n"
    "- **Fusion:** Ensure that elements in motion (e.g., edges of the subject, hair, clothing) blend naturally with "
    "the background, without obvious artifacts or the feeling of cut-and-paste effects.\n"
    "- **Clarity of Motion:** The video should be clear and smooth in motion. Pay attention to any areas where the "
    "video might have blurry or unsteady sections that hinder visual continuity.\n"
    "- **Amplitude:** If the video is largely static or has little movement, assign a low score for motion quality."
    "\n\nPlease provide the ratings of Motion Quality: <|MQ_reward|>\n"
    "END\n\n**Text Alignment:**  \nAssess how well the video matches the textual prompt across the following "
    "sub-dimensions:\n- **Subject Relevance** Evaluate how accurately the subject(s) in the video (e.g., person, "
    "animal, object) align with the textual description. The subject should match the description in terms of "
    "number, appearance, and behavior.\n- **Motion Relevance:** Evaluate if the dynamic actions (e.g., gestures, "
    "posture, facial expressions like talking or blinking) align with the described prompt. The motion should match "
    "the prompt in terms of type, scale, and direction.\n- **Environment Relevance:** Assess whether the background "
    "and scene fit the prompt. This includes checking if real-world locations or scenes are accurately represented, "
    "though some stylistic adaptation is acceptable.  \n- **Style Relevance:** If the prompt specifies a particular "
    "artistic or stylistic style, evaluate how well the video adheres to this style.\n"
    "- **Camera Movement Relevance:** Check if the camera movements (e.g., following the subject, focus shifts) are "
    "consistent with the expected behavior from the prompt.\n\nTextual prompt - {text_prompt}\n"
    "Please provide the ratings of Text Alignment: <|TA_reward|>\n"
    "END\n"
)


def sampled(count: int, fps: float | None, rate: float, frames: int | None = None) -> list[int]:
    """Return which frames of a clip the model sees.

    n = count / fps * rate, at least 4, at most 768 and the clip's own, rounded to an even number; the frames are
    linspace(0, count - 1, n), rounded. As `smart_nframes` with sample_type uniform in the published vision_process.py.

    Args:
        count: frames of the clip.
        fps: of the clip.
        rate: frames to see per second.
        frames: a fixed number of frames to see instead, rounded to an even number and at most the clip's own.

    Raises:
        RewardError: neither fps nor frames are known.
        CannotJudgeError: the clip has fewer than two frames.
    """
    if frames is not None:
        wanted = min(2 * round(frames / 2), count)
    elif fps is None:
        raise RewardError(
            "The reward video_align samples frames by time. Got clips that do not say their frames per second. Give "
            "fps to diffrl.score or RewardBatch; diffrl score reads it from files: save them as .mp4 with it."
        )
    else:
        most = 2 * (min(MOST_FRAMES, count) // 2)
        wanted = 2 * round(min(max(count / fps * rate, LEAST_FRAMES), most) / 2)
    if wanted < 2:
        raise CannotJudgeError(f"the clip has {count} frames, and motion takes two")
    return [int(frame) for frame in torch.linspace(0, count - 1, wanted).round()]


def resized(frames: Tensor, height: int, width: int) -> Tensor:
    """Resize as torchvision does uint8: bicubic, antialiased, in float32, rounded to grey levels.

    Args:
        frames: (F, 3, H, W) uint8.
        height: of the result.
        width: of the result.

    Returns:
        (F, 3, height, width) float32 in [0, 255].
    """
    if frames.shape[-2:] == (height, width):
        return frames.float()
    return interpolate(frames.float(), (height, width), mode="bicubic", antialias=True).clamp(0, 255).round()


class VideoAlignScorer:
    """Visual quality, motion quality and text alignment of a clip, as people would rate them: VideoReward.

    A Qwen2-VL-2B reads the clip and a fixed instruction (`INSTRUCTION`, verbatim from the published
    prompt_template.py) with the tokens <|VQ_reward|>, <|MQ_reward|> and <|TA_reward|>; one linear layer without bias
    reads the last hidden state at each, in float32. Every part is then normalised, (x - mean) / std, with the
    checkpoint's own inference_config (by third-party copies VQ 3.6757, 2.2476; MQ 1.1646, 1.3811; TA 2.8105, 2.5121).
    raw is their sum, the published Overall, or the part that `use` names: unbounded, about 0 for an average clip.

    Preprocessing, with settings from the checkpoint's model_config.json: frames at 2 per second of the clip's own time
    (`sampled`: at least 4, an even number, evenly spread from the first to the last), resized bicubically with
    antialiasing to multiples of 28 pixels with an area of at most max_frame_pixels (published: 448 * 448) and at least
    128 * 28 * 28, divided by 255 and normalised with CLIP's mean and standard deviation. The published code reads
    frames from a video file, which is lossy; here they are what was generated.

    The published checkpoint-N/model.pth is a PEFT-wrapped state: LoRA adapters are added to the weights as PEFT does
    (alpha and use_rslora from model_config.json). A file without adapters is read as it is. Positions are 0, 1, 2, ...
    as the published code runs under transformers 4.45; see HPSv3. It computes in bfloat16, head included.

    Not checked against the published weights here: the tests use random weights in the published key layout.

    Args:
        checkpoint: directory with model_config.json and checkpoint-N/model.pth (or model.safetensors), one such file
            with model_config.json beside or above it, or the hub id.
        model: directory or hub id of the base model, of which config.json and the tokenizer are read, not the weights.
        use: overall, or VQ, MQ or TA alone.
        step: N of checkpoint-N; default: the largest there is, of the hub 11352.
        dtype: float32, bfloat16 or float16, of all but the head.
        positions: sequential or mrope.
        revision: of the checkpoint on the hub.

    Source: Liu et al., "Improving Video Generation with Human Feedback", arXiv 2501.13918;
    https://github.com/KwaiVGI/VideoAlign (MIT), weights KwaiVGI/VideoReward (Apache-2.0).
    """

    spec = ScorerSpec(
        name="video_align",
        description="Visual quality, motion quality and text alignment of a clip, judged by a fine-tuned Qwen2-VL-2B.",
        range=(-math.inf, math.inf),
        media=("video",),
        memory="8.8 GB float32, 4.4 GB in half precision (computed, not measured)",
        weights="KwaiVGI/VideoReward, with Qwen/Qwen2-VL-2B-Instruct's config and tokenizer",
        code_license="MIT (instruction text), Apache-2.0 (this code)",
        weights_license="Apache-2.0",
        citation="https://arxiv.org/abs/2501.13918",
        batch_size=4,
    )

    def __init__(
        self,
        *,
        checkpoint: str = "KwaiVGI/VideoReward",
        model: str = "Qwen/Qwen2-VL-2B-Instruct",
        use: str = "overall",
        step: int | None = None,
        dtype: str = "float32",
        positions: Any = "sequential",
        revision: str | None = None,
    ) -> None:
        if use not in ("overall", *PARTS):
            raise RewardError(f"use must be overall, {', '.join(PARTS)}. Got {use!r}.")
        number = dtype_of(dtype)
        weights, settings = files_of(checkpoint, step, revision)
        config = settings_of(settings)
        self.use = use
        self.data, self.norm = config["data_config"], config["inference_config"]
        key = ("video_align", str(weights), str(settings), str(model), number, str(positions))
        lora = config["peft_lora_config"]
        self.qwen: QwenReward = shared(key, lambda: _loaded(model, weights, lora, number, positions))

    def to(self, device: str | torch.device) -> VideoAlignScorer:
        """Move the weights."""
        self.qwen.to(device)
        return self

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score clips; one of fewer than two frames, or a prompt with one of the model's own marks, is a failure.

        Raises:
            RewardError: the clips' frames per second are not known.
        """
        self.spec.require(batch)
        asked = [self._question(*pair, batch.fps) for pair in zip(batch.media, batch.prompts, strict=True)]
        rows: list[tuple[float, Mapping[str, float], str | None]] = []
        for answer in self.qwen.answers(asked, "video"):
            if isinstance(answer, str):
                rows.append((math.nan, {}, answer))
                continue
            parts = {
                part: (float(value) - self.norm[f"{part}_mean"]) / self.norm[f"{part}_std"]
                for part, value in zip(PARTS, answer[:, 0], strict=True)
            }
            score = sum(parts.values()) if self.use == "overall" else parts[self.use]
            good = math.isfinite(score)
            rows.append((score if good else math.nan, parts, None if good else f"the model returned {score}"))
        return output_of_rows(rows, PARTS)

    def _question(self, clip: Tensor, prompt: str, fps: float | None) -> Question | str:
        try:
            rows = sampled(len(clip), fps, self.data["fps"], self.data.get("num_frames"))
            most = int(self.data["max_frame_pixels"])
            height, width = clip.shape[-2:]
            size = fitting_size(height, width, self.qwen.factor, LEAST_PIXELS, most)
            return self.qwen.question(resized(clip[rows].cpu(), *size), INSTRUCTION, prompt, "video")
        except CannotJudgeError as error:
            return str(error)


def _loaded(model: str, weights: Path, lora: Mapping[str, Any], dtype: torch.dtype, positions: Any) -> QwenReward:
    """Return the model with a file's weights, its adapters added to them."""
    state = merge_lora(read_state(weights, "video_align"), lora["lora_alpha"], bool(lora.get("use_rslora")))
    hidden = int(state["rm_head.weight"].shape[1]) if "rm_head.weight" in state else 1536
    return QwenReward(
        folder=model,
        state=state,
        head=nn.Linear(hidden, 1, bias=False),
        tokens=TOKENS,
        dtype=dtype,
        positions=positions,
        reward="video_align",
        source=str(weights),
    )
