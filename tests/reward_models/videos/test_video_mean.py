import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reward_models import RewardBatch, RewardError, ScorerSpec, load_reward
from reward_models.base import WithoutWeights, output_of_rows
from reward_models.common.video_files import frame_rows
from reward_models.self_test import clip, drawing, noise


@given(st.integers(1, 200), st.integers(1, 40))
def test_sampled_frames_are_the_rounded_even_spacing(count, frames):
    rows = frame_rows(count, frames)
    n = min(count, frames)
    exact = [Fraction(k * (count - 1), n - 1) for k in range(n)] if n > 1 else [Fraction((count - 1) // 2)]
    assert rows == [math.floor(value + Fraction(1, 2)) for value in exact]
    assert len(set(rows)) == n and rows == sorted(rows)
    if n > 1:
        assert rows[0] == 0 and rows[-1] == count - 1


def test_mean_of_the_wrapped_scorer_frame_by_frame():
    generator = torch.Generator().manual_seed(0)
    media = torch.randint(0, 256, (3, 7, 3, 37, 53), generator=generator, dtype=torch.uint8)
    inner, outer = load_reward("sharpness"), load_reward("video_mean", reward="sharpness", frames=4)
    expected = [
        sum(inner(RewardBatch(media[b, f][None], ["a"])).raw.item() for f in (0, 2, 4, 6)) / 4 for b in range(3)
    ]
    output = outer(RewardBatch(media, ["a"] * 3, fps=8.0))
    assert output.raw.tolist() == pytest.approx(expected, rel=1e-6) and output.ok.all()


def test_parts_metadata_and_options_reach_the_wrapped_scorer():
    scorer = load_reward("video_mean", reward="shapes", reward_options={"clutter": 0.0}, frames=3)
    assert scorer.scorer.tolerances.clutter == 0.0
    good, half = clip("red", "circle"), clip("red", "circle")
    half[4] = drawing("blue", "square")  # 1 of the 3 frames 0, 4, 7
    output = scorer(RewardBatch(torch.stack([good, half]), ["a red circle"] * 2))
    assert output.parts["colour"].tolist() == pytest.approx([1, 2 / 3])
    assert output.raw[0] > output.raw[1]


class NotBlack(WithoutWeights):
    """Fails on black images."""

    spec = ScorerSpec(name="not_black", description="-", range=(0.0, 1.0), requires=("key",), scaling=(2.0, 3.0))

    def __call__(self, batch):
        self.spec.require(batch)
        return output_of_rows(
            [(math.nan, {}, "it is black") if not picture.any() else (0.5, {}, None) for picture in batch.media]
        )


def test_one_failing_frame_fails_the_clip_and_no_other():
    scorer = load_reward("video_mean", reward=f"{__name__}:NotBlack", frames=3)
    media = torch.full((2, 5, 3, 4, 4), 9, dtype=torch.uint8)
    media[1, 2:] = 0
    output = scorer(RewardBatch(media, ["a", "b"], [{"key": 1}] * 2))
    assert output.ok.tolist() == [True, False] and output.raw[0] == 0.5 and torch.isnan(output.raw[1])
    assert output.errors == [None, "frame 2: it is black"]
    unseen = media.clone()
    unseen[1] = 9
    unseen[1, 1] = 0  # not among 0, 2, 4
    assert scorer(RewardBatch(unseen, ["a", "b"], [{"key": 1}] * 2)).ok.all()


class Forgetful(WithoutWeights):
    """As a remote reward: it has no parts where a whole batch failed, here where all images are black."""

    spec = ScorerSpec(name="forgetful", description="-", range=(0.0, 255.0))

    def __call__(self, batch):
        rows = [
            (float(picture.max()), {"least": float(picture.min())}, None) if picture.any() else (math.nan, {}, "black")
            for picture in batch.media
        ]
        return output_of_rows(rows, ("least",) if batch.media.any() else ())


@pytest.mark.parametrize("dark", [0, 1])
def test_a_frame_without_parts_leaves_them_unknown(dark):
    media = torch.full((2, 3, 3, 4, 4), 6, dtype=torch.uint8)
    media[0, :, 0, 0, 0] = 3
    scorer = load_reward("video_mean", reward=f"{__name__}:Forgetful", frames=3)
    whole = scorer(RewardBatch(media, ["a", "b"]))
    assert whole.parts["least"].tolist() == [3, 6] and whole.ok.all()
    media[:, dark] = 0
    output = scorer(RewardBatch(media, ["a", "b"]))
    assert not output.ok.any() and output.raw.isnan().all() and output.errors == [f"frame {dark}: black"] * 2
    assert list(output.parts) == ["least"] and output.parts["least"].isnan().all()
    assert dict(scorer(RewardBatch(torch.zeros_like(media), ["a", "b"])).parts) == {}


def test_spec_is_the_wrapped_scorers():
    spec = load_reward("video_mean", reward=f"{__name__}:NotBlack", frames=3).spec
    assert (spec.name, spec.media, spec.requires, spec.scaling) == ("video_mean", ("video",), ("key",), (2.0, 3.0))
    with pytest.raises(RewardError, match="video_mean needs key"):
        load_reward("video_mean", reward=f"{__name__}:NotBlack")(
            RewardBatch(torch.zeros(1, 2, 3, 4, 4, dtype=torch.uint8), ["a"])
        )


def test_groups_are_compared_frame_by_frame():
    scorer = load_reward("video_mean", reward="diversity", frames=2)
    media = torch.zeros(3, 4, 3, 32, 32, dtype=torch.uint8)
    media[1, 0], media[2] = 255, noise(32)
    output = scorer(RewardBatch(media, ["a", "a", "b"]))
    assert output.raw[:2].tolist() == pytest.approx([0.5, 0.5]) and output.ok.tolist() == [True, True, False]
    by_number = scorer(RewardBatch(media, ["a", "a", "b"], groups=[1, 2, 2]))
    assert by_number.ok.tolist() == [False, True, True]


def test_refusals():
    with pytest.raises(RewardError, match="frames of video_mean must be at least 1"):
        load_reward("video_mean", reward="sharpness", frames=0)
    with pytest.raises(RewardError, match="'temporal_flicker', which scores videos"):
        load_reward("video_mean", reward="temporal_flicker")
    with pytest.raises(RewardError, match="needs the option reward"):
        load_reward("video_mean")
    scorer = load_reward("video_mean", reward="sharpness")
    empty = scorer(RewardBatch(torch.zeros(2, 0, 3, 8, 8, dtype=torch.uint8), ["a", "b"]))
    assert not empty.ok.any() and empty.errors[0] == "the clip has no frames"
