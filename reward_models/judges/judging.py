"""What judges behind a chat server share: which frames they see, and one row of output for each answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from reward_models.base import RewardBatch
from reward_models.common.errors import RewardError
from reward_models.judges.chat import ChatClient, Reply, image_content
from reward_models.media import from_pil, to_pil
from reward_models.text.answers import AnswerError

Row = tuple[float, Mapping[str, float], str | None]


def shown_frames(count: int, wanted: int) -> list[int]:
    """Return frames floor(i * count / wanted) for i = 0 ... wanted - 1, each once, so all of a clip that has no more.

    Args:
        count: frames of the clip.
        wanted: at most as many are shown.
    """
    return list(dict.fromkeys(i * count // wanted for i in range(wanted))) if count else []


def refuse_few(frames: int, reward: str) -> None:
    """Refuse a number of frames that shows nothing."""
    if not isinstance(frames, int) or isinstance(frames, bool) or frames < 1:
        raise RewardError(f"frames of the reward {reward} must be a whole number from 1. Got {frames!r}.")


def judged(
    client: ChatClient,
    batch: RewardBatch,
    question: Callable[[str], str],
    read: Callable[[Reply], tuple[float, Mapping[str, float]]],
    *,
    frames: int,
    side: int | None = None,
    **fields: Any,
) -> list[Row]:
    """Ask about every sample: the image that it is an edit of, if the batch has it, its images, and then the text.

    Args:
        client: asks.
        batch: images or clips.
        question: the text for a prompt.
        read: the score and its parts in a reply; raises AnswerError where there is none.
        frames: of a clip that are shown.
        side: images are resized to side x side, bicubically, as a whole; None leaves them as they are.
        **fields: of every request.
    """

    def content(media: Tensor, prompt: str, *source: Tensor) -> Sequence[Mapping[str, Any]]:
        clip = media[None] if media.ndim == 3 else media[shown_frames(len(media), frames)]
        if not clip.numel():
            raise AnswerError(f"there is nothing to see in {' x '.join(map(str, media.shape))} values")
        seen = [*source, *clip]
        images = [image_content(image if side is None else _squeezed(image, side)) for image in seen]
        return [*images, {"type": "text", "text": question(prompt)}]

    media = batch.media.detach().cpu()
    asked = zip(media, batch.prompts, *([batch.sources] if batch.sources else []), strict=True)
    replies = client.ask_all([partial(content, *parts) for parts in asked], **fields)
    rows: list[Row] = []
    for reply in replies:
        try:
            if isinstance(reply, AnswerError):
                raise reply
            rows.append((*read(reply), None))
        except AnswerError as error:
            rows.append((math.nan, {}, str(error)))
    return rows


def _squeezed(image: Tensor, side: int) -> torch.Tensor:
    return from_pil(to_pil(image).resize((side, side), Image.Resampling.BICUBIC))
