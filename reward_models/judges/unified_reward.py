"""UnifiedReward 1.5 and 2.0 behind a chat server (Wang et al., 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.judges.chat import ChatClient, Reply
from reward_models.judges.judging import judged, refuse_few
from reward_models.text.answers import AnswerError, labelled_number, parts_of, within

# The questions are the interface of the published models, word for word: 2.0 from point_score_ACS_image_generation.py
# and point_score_ACS_video_generation.py of https://github.com/CodeGoat24/UnifiedReward (MIT licence), 1.5 as Flow-GRPO
# asks it (https://github.com/yifan123/flow_grpo, MIT licence, flow_grpo/rewards.py, unifiedreward_score_sglang).
_START = (
    "You are presented with a generated {media} and its associated text caption. "
    "Your task is to analyze the {media} across multiple dimensions in relation to the caption. Specifically:\n"
    "Provide overall assessments for the {media} along the following axes (each rated from 1 to 5):\n"
    "- Alignment Score: How well the {media} matches the caption in terms of content.\n"
)
_END = (
    "\n\nOutput your evaluation using the format below:\n\nAlignment Score (1-5): X\n{second} Score (1-5): Y\n"
    "Style Score (1-5): Z\n\nYour task is provided as follows:\nText Caption: [{prompt}]"
)
IMAGE_2 = (
    _START.replace("{media}", "image") + "- Coherence Score: How logically consistent the image is (absence of visual "
    "glitches, object distortions, etc.).\n- Style Score: How aesthetically appealing the image looks, regardless of "
    "caption accuracy." + _END.replace("{second}", "Coherence")
)
VIDEO_2 = (
    _START.replace("{media}", "video") + "- Physics Score: How well the gravity, movements, collisions, and "
    "interactions make physical sense.\n- Style Score: How visually appealing the video looks, regardless of caption "
    "accuracy." + _END.replace("{second}", "Physics")
)
IMAGE_1_5 = (
    "<image>\nYou are given a text caption and a generated image based on that caption. Your task is to evaluate this "
    "image based on two key criteria:\n1. Alignment with the Caption: Assess how well this image aligns with the "
    "provided caption. Consider the accuracy of depicted objects, their relationships, and attributes as described in "
    "the caption.\n2. Overall Image Quality: Examine the visual quality of this image, including clarity, detail "
    "preservation, color accuracy, and overall aesthetic appeal.\nBased on the above criteria, assign a score from 1 "
    "to 5 after 'Final Score:'.\nYour task is provided as follows:\nText Caption: [{prompt}]"
)
LABELS = {
    "image": {"alignment": "Alignment Score", "coherence": "Coherence Score", "style": "Style Score"},
    "video": {"alignment": "Alignment Score", "physics": "Physics Score", "style": "Style Score"},
}
LIMITS = (1.0, 5.0)


class UnifiedRewardScorer:
    """How well an image or a clip fits its prompt and how good it looks, judged by UnifiedReward behind a chat server.

    Version 2.0 (Qwen-VL models) rates three axes from 1 to 5: alignment, coherence and style of an image; alignment,
    physics and style of a clip. raw is their mean, the axes are parts; usual scaling (raw - 1) / 4. A clip is shown as
    16 frames, floor(i * count / 16). Version 1.5 (LLaVA models, images only) gives one Final Score from 1 to 5; usual
    scaling raw / 5; its images are resized to 512 x 512, whatever their shape, as Flow-GRPO does.

    Questions are word for word those of the published code. Scores are read as `Alignment Score (1-5): 2.69` or
    `**Final Score:** 4`, the last of each if there are several; the "(1-5)" is never read as a score. An answer that
    lacks one, or has one outside 1 to 5 or out of another number than 5, is a failure: NaN, never 0. Answers are the
    likeliest (temperature 0).

    The published client sends JPEG of quality 95; here it is PNG, lossless. Not tried with the published weights here.

        vllm serve CodeGoat24/UnifiedReward-2.0-qwen3vl-8b --served-model-name UnifiedReward \
            --limit-mm-per-prompt.image 16 --port 8080

    Args:
        url: of the server or servers.
        model: as the server names it.
        version: "2.0" or "1.5".
        frames: of a clip that are shown.
        side: resize images to side x side; default 512 in version 1.5, and not at all in 2.0.
        **connection: further options of `reward_models.judges.chat.ChatClient`: api_key_env, timeout, retries, backoff,
            deadline, concurrency, temperature, max_tokens, extra, check.

    Source: Wang et al., "Unified Reward Model for Multimodal Understanding and Generation", arXiv 2503.05236;
    https://github.com/CodeGoat24/UnifiedReward (MIT); weights CodeGoat24/UnifiedReward-* (MIT by the repository,
    their cards were not read).
    """

    spec = ScorerSpec(
        name="unified_reward",
        description="Alignment, coherence (of clips: physics) and style, judged by UnifiedReward behind a chat server.",
        range=LIMITS,
        media=("image", "video"),
        scaling=(1.0, 4.0),
        memory="none here: the model runs behind its server",
        weights="CodeGoat24/UnifiedReward-2.0-qwen3vl-8b or another size, served by vLLM; 1.5 by SGLang",
        code_license="MIT (questions), Apache-2.0 (this code)",
        weights_license="MIT (the repository's; the model cards were not read)",
        citation="https://arxiv.org/abs/2503.05236",
        batch_size=64,
    )

    def __init__(
        self,
        *,
        url: str | Sequence[str] = "http://localhost:8080",
        model: str = "UnifiedReward",
        version: str = "2.0",
        frames: int = 16,
        side: int | None = None,
        **connection: Any,
    ) -> None:
        if str(version) not in ("1.5", "2.0", "2"):
            raise RewardError(f"version of the reward unified_reward must be 1.5 or 2.0. Got {version!r}.")
        refuse_few(frames, "unified_reward")
        if side is not None and (not isinstance(side, int) or side < 1):
            raise RewardError(f"side of the reward unified_reward must be a number of pixels. Got {side!r}.")
        self.old = str(version) == "1.5"
        self.frames, self.side = frames, (512 if self.old and side is None else side)
        if self.old:
            self.spec = replace(self.spec, media=("image",), scaling=(0.0, 5.0), version="1 (UnifiedReward 1.5)")
        self.client = ChatClient(url=url, model=model, **({"max_tokens": 4096} | connection))

    def to(self, device: str | torch.device) -> UnifiedRewardScorer:
        """Return itself: nothing moves."""
        return self

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Ask about every sample; a question that fails is a failure of its sample."""
        self.spec.require(batch)
        newer = IMAGE_2 if batch.kind == "image" else VIDEO_2
        template = IMAGE_1_5 if self.old else newer
        labels = {} if self.old else LABELS[batch.kind]

        def read(reply: Reply) -> tuple[float, Mapping[str, float]]:
            if not reply.complete:
                raise AnswerError("the answer was cut off: raise max_tokens")
            if self.old:
                return within(labelled_number(reply.text, "Final Score", LIMITS[1]), LIMITS), {}
            parts = parts_of(reply.text, labels, LIMITS)
            return sum(parts.values()) / len(parts), parts

        def question(prompt: str) -> str:
            return template.replace("{prompt}", prompt)

        rows = judged(self.client, batch, question, read, frames=self.frames, side=self.side)
        return output_of_rows(rows, tuple(labels))
