"""Rewards asked once before a run: what does not answer, or breaks, is better known before the first iteration."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diffrl.config import Config
from diffrl.errors import ConfigError
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer, score
from reward_models import RewardError
from reward_models.common.messages import quote

SIDE, FRAMES = 64, 9
"""Of a picture and a video where the configuration leaves the size to the pipeline; nothing is loaded to ask it."""


HINT = "If that is for the prompt's sake, samples of such prompts will not train."


def try_rewards(config: Config, scorers: Sequence[WeightedScorer], prompt: Prompt) -> list[str]:
    """Ask every reward once, for two samples of noise that a training prompt stands for.

    Args:
        config: the run.
        scorers: its rewards.
        prompt: one that it trains on, with its metadata.

    Returns:
        What could not be scored, a line each. Noise may rightly be refused, so this is no error.

    Raises:
        ConfigError: a reward raised; names it.
    """
    m = config.model
    shape = (3, m.height or SIDE, m.width or SIDE)
    if m.facts.media == "video":
        shape = (m.frames or FRAMES, *shape)
    media = torch.randint(0, 256, (2, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    failed, broken = [], []
    for one in {scorer.name: scorer for scorer in scorers}.values():
        try:
            table = score([one], media, [prompt, prompt], [0, 0])
        except RewardError as error:
            broken.append(str(error))
            continue
        if error := next((error for error in table.errors if error), None):
            failed.append(f"It could not score noise for the first prompt, {quote(prompt.text)}. {error} {HINT}")
    if broken:
        raise ConfigError(broken)
    return failed
