"""Scorers of CLIP's kind in half precision: near their float32 scores, with what decides them kept exact."""

import math

import pytest
import torch

from reward_models import RewardBatch
from tests.reward_models import tiny_clip
from tests.reward_models.images.test_clip_score import pictures

PROMPTS = ["a red circle", "two blue squares, and a green triangle", "a red circle", "x"]
NAMES = ("aesthetic", "clip_score", "hpsv2", "image_reward", "pickscore")


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"), [*((name, "bfloat16", 0.15) for name in NAMES), ("hpsv2", "float16", 0.02)]
)
def test_half_precision_is_near(tmp_path, name, dtype, tolerance):
    """Relative to the spread of the scores."""
    make, batch = getattr(tiny_clip, name), RewardBatch(pictures(4, 37, 53), PROMPTS)
    exact, half = make(tmp_path)(batch).raw, make(tmp_path, dtype=dtype)(batch).raw
    assert half.dtype == torch.float32 and 0 < ((half - exact) / exact.std()).abs().max() < tolerance


def test_heads_and_scales_stay_exact(tmp_path):
    heads = (
        tiny_clip.aesthetic(tmp_path, dtype="float16").head,
        tiny_clip.image_reward(tmp_path, dtype="bfloat16").model.head,
    )
    assert {weight.dtype for head in heads for weight in head.parameters()} == {torch.float32}
    scale = tiny_clip.pickscore(tmp_path, dtype="bfloat16").towers.scale
    assert scale == pytest.approx(math.exp(4.6052), rel=1e-6)  # bfloat16 would make it 1.1 % less
