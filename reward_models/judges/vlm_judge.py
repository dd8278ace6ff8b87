"""Any vision-language model behind an OpenAI-compatible server as a judge."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.judges.chat import ChatClient, Reply
from reward_models.judges.judging import judged, refuse_few
from reward_models.text.answers import (
    AnswerError,
    json_number,
    labelled_number,
    matched_number,
    within,
    yes_probability,
)

_TASK = (
    "You see {media} that a model made from the prompt at the end. Judge how faithfully the prompt is followed and how "
    "good the result looks, as a strict art director would. Give a score from {low} (useless) to {high} (perfect). "
)
_ANSWERS = {
    "json": 'Answer with one JSON object and nothing else: {"score": <number>}\nPrompt: {prompt}',
    "regex": "You may think first. End with a line of the form\nScore: <number>\nPrompt: {prompt}",
}
TEMPLATES = {
    **{name: _TASK + form for name, form in _ANSWERS.items()},
    "yes_probability": 'You see {media}. Does it show what this prompt asks for? "{prompt}"\nAnswer Yes or No.',
}
_EDIT = (
    "You see an image, and after it {media} that a model made from it by the instruction at the end. Judge how "
    "faithfully the instruction is followed, whether all that it does not ask for stayed as it was, and how good the "
    "result looks, as a strict art director would. Give a score from {low} (useless, or nothing was changed) to {high} "
    "(perfect). "
)
EDIT_TEMPLATES = {
    **{name: _EDIT + form.replace("Prompt:", "Instruction:") for name, form in _ANSWERS.items()},
    "yes_probability": "You see an image, and after it {media} that a model made from it. Does it follow this "
    'instruction, and leave all else as it was? "{prompt}"\nAnswer Yes or No.',
}


class VlmJudgeScorer:
    """How good a vision-language model finds an image or a clip, asked in your words.

    The model sees the image (PNG, lossless), or up to `frames` frames of a clip in order (`shown_frames`), and then
    the text. With `source` it sees the image first that the sample is an edit of, or with which its video begins, and
    is asked about the instruction and about what should have stayed. The score is, by `answer`:

    - json: the number under `key` of the last JSON object in the answer that has it;
    - regex: the number in the only group of the last match of `pattern`; without a pattern the last number after
      "Score:", where a remark such as "(1-10)" is passed over; "4/10" is read only where 10 is the highest score;
    - yes_probability: P(Yes) / (P(Yes) + P(No)) of the first token, from its 20 likeliest tokens; smoother, with
      fewer ties. At least half of the probability must be on the two words.

    raw is that number as the model gave it. A number outside `range`, an answer that was cut off, cannot be read or
    never came is a failure of its sample: NaN with the reason, never 0.

    Args:
        url: of the server or servers.
        model: as the server names it.
        template: the question; {prompt}, {media}, {low} and {high} are put in, other braces stay.
        answer: json, regex or yes_probability.
        key: for json.
        pattern: for regex, with exactly one group.
        words: for yes_probability, the answer that counts and the other.
        range: lowest and highest score; (raw - low) / (high - low) is the usual scaling.
        frames: of a clip that are shown.
        source: whether the image that a sample is an edit of is shown before it.
        **connection: further options of `reward_models.judges.chat.ChatClient`: api_key_env, timeout, retries, backoff,
            deadline, concurrency, temperature, max_tokens, extra, check.

    Source: own; P(Yes) as a score is due to Lin et al., "Evaluating Text-to-Visual Generation with Image-to-Text
    Generation" (VQAScore), arXiv 2404.01291.
    """

    spec = ScorerSpec(
        name="vlm_judge",
        description="The score that a vision-language model behind a chat server gives, asked with your own template.",
        range=(-math.inf, math.inf),
        media=("image", "video"),
        scaling=(0.0, 10.0),
        memory="none here: the model runs behind its server",
        citation="https://arxiv.org/abs/2404.01291",
        batch_size=64,
    )

    def __init__(
        self,
        *,
        url: str | Sequence[str],
        model: str,
        template: str | None = None,
        answer: str = "json",
        key: str = "score",
        pattern: str | None = None,
        words: Sequence[str] = ("Yes", "No"),
        range: Sequence[float] | None = None,
        frames: int = 8,
        source: bool = False,
        **connection: Any,
    ) -> None:
        if answer not in TEMPLATES:
            raise RewardError(f"answer of the reward vlm_judge must be one of {', '.join(TEMPLATES)}. Got {answer!r}.")
        refuse_few(frames, "vlm_judge")
        if not isinstance(source, bool):
            raise RewardError(f"source of the reward vlm_judge must be true or false. Got {source!r}.")
        self.answer, self.key, self.frames = answer, key, frames
        self.pattern = _pattern(pattern) if pattern is not None else None
        if len(words) != 2 or isinstance(words, str) or words[0].lower() == words[1].lower():
            raise RewardError(f"words of the reward vlm_judge must be two words. Got {words!r}.")
        self.words = (words[0], words[1])
        usual = (0.0, 1.0) if answer == "yes_probability" else (0.0, 10.0)
        self.limits = _limits(usual if range is None else range)
        self.template = template if template is not None else (EDIT_TEMPLATES if source else TEMPLATES)[answer]
        low, high = self.limits
        self.spec = replace(
            self.spec,
            range=self.limits,
            scaling=(low, high - low),
            uses_prompt="{prompt}" in self.template,
            uses_source=source,
        )
        self.client = ChatClient(url=url, model=model, **connection)

    def to(self, device: str | torch.device) -> VlmJudgeScorer:
        """Return itself: nothing moves."""
        return self

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Ask about every sample; a question that fails is a failure of its sample."""
        self.spec.require(batch)
        media = "an image" if batch.kind == "image" else "the frames of a video, in order,"

        def question(prompt: str) -> str:
            text = self.template
            for name, value in {"media": media, "low": f"{self.limits[0]:g}", "high": f"{self.limits[1]:g}"}.items():
                text = text.replace(f"{{{name}}}", value)
            return text.replace("{prompt}", prompt)  # last, so that braces in a prompt are the prompt's

        first_token = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1}
        fields = first_token if self.answer == "yes_probability" else {}
        return output_of_rows(judged(self.client, batch, question, self._read, frames=self.frames, **fields))

    def _read(self, reply: Reply) -> tuple[float, Mapping[str, float]]:
        if self.answer == "yes_probability":
            if not reply.first_token:
                raise AnswerError("the server sent no log probabilities: it must support logprobs and top_logprobs")
            return yes_probability(reply.first_token, self.words), {}
        if not reply.complete:
            raise AnswerError("the answer was cut off: raise max_tokens")
        if self.answer == "json":
            value = json_number(reply.text, self.key)
        elif self.pattern is not None:
            value = matched_number(reply.text, self.pattern)
        else:
            value = labelled_number(reply.text, "Score", self.limits[1])
        return within(value, self.limits), {}


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise RewardError(
            f"pattern of the reward vlm_judge must be a regular expression. {text!r}: {error}."
        ) from error
    if pattern.groups != 1:
        raise RewardError(
            f"pattern of the reward vlm_judge must have one group, the number. {text!r} has {pattern.groups}."
        )
    return pattern


def _limits(limits: Sequence[float]) -> tuple[float, float]:
    numbers = len(limits) == 2 and all(isinstance(v, (int, float)) and math.isfinite(v) for v in limits)
    if not numbers or not limits[0] < limits[1]:
        raise RewardError(f"range of the reward vlm_judge must be (lowest, highest). Got {limits!r}.")
    return float(limits[0]), float(limits[1])
