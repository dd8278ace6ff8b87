"""Rewards that read a prompt to a limit: the rest makes no difference, and the limit is what they say."""

import pytest
import torch

from reward_models.base import RewardBatch
from reward_models.prompt_checks import reading_of
from reward_models.registry import load_reward
from tests.reward_models import tiny_clip


@pytest.mark.parametrize("make", ["clip_score", "pickscore", "hpsv2", "image_reward"])
def test_a_prompt_scores_as_its_part_within_the_limit(make, tmp_path):
    scorer = getattr(tiny_clip, make)(tmp_path)
    limit, length = reading_of(scorer)
    words = [("red", "blue", "green", "two")[n * n % 7 % 4] for n in range(300)]
    frame = length("")
    assert frame == 2 and length(" ".join(words)) > limit
    fit = next(n for n in range(300) if length(" ".join(words[: n + 1])) > limit)  # words that are read
    texts = {n: " ".join(words[:n]) for n in (fit - 2, fit - 1, fit, 300)}
    texts["other end"] = f"{texts[fit]} circle square"
    texts["one word more"] = " ".join([*words[:fit], "circle"])
    pictures = torch.randint(0, 256, (len(texts), 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    pictures[:] = pictures[:1].clone()
    raw = dict(zip(texts, scorer(RewardBatch(pictures, list(texts.values()))).raw.tolist(), strict=True))
    assert raw[300] == pytest.approx(raw[fit], rel=1e-5) == raw["other end"] == raw["one word more"]
    assert len({round(raw[n], 6) for n in (fit - 2, fit - 1, fit)}) == 3


def test_rewards_that_read_no_prompt_or_all_of_it_have_no_limit(tmp_path):
    assert reading_of(tiny_clip.aesthetic(tmp_path)) is None
    assert reading_of(load_reward("shapes")) is None
