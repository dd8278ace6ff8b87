"""Textures that move by known distances, and VBench's rule written once more."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from reward_models import RewardBatch, load_reward
from reward_models.videos.optical_flow import largest_mean, moves, sampled

pytest.importorskip("cv2")


def shifting(step, frames=6, height=96, width=128, direction=(0, 1)):
    """A smooth random texture that moves by `step` pixels a frame."""
    size = 200
    texture = gaussian_filter(np.random.default_rng(0).normal(size=(size, size)), 3)
    texture = ((texture - texture.min()) / np.ptp(texture) * 255).astype(np.uint8)
    places = [(direction[0] * step * i, direction[1] * step * i) for i in range(frames)]
    made = [texture[y : y + height, x : x + width] for y, x in places]
    return torch.from_numpy(np.stack(made))[:, None].expand(-1, 3, -1, -1).contiguous()


def score(clips, fps=8.0):
    return load_reward("dynamic_degree_proxy")(RewardBatch(torch.stack(clips), ["a"] * len(clips), fps=fps))


@pytest.mark.parametrize("direction", [(0, 1), (1, 0)])
def test_magnitude_is_the_distance_moved(direction):
    output = score([shifting(step, direction=direction) for step in (0, 1, 3, 8)])
    # the largest 5 % lie at the borders, where the texture comes into view
    assert output.parts["magnitude"].tolist() == pytest.approx([0, 1, 3, 8], rel=0.15)


def test_threshold_scales_with_the_shorter_side():
    """6 * 96 / 256 = 2.25 pixels."""
    output = score([shifting(step) for step in (0, 1, 2, 3, 8)])
    assert output.raw.tolist() == [0, 0, 0, 1, 1]
    assert output.parts["moving"].tolist() == [0, 0, 0, 1, 1]
    wide = score([shifting(3, height=160, width=160)])  # 3.75 pixels
    assert wide.raw.tolist() == [0]


def test_a_quarter_of_the_frames_must_move():
    still, fast = shifting(0, frames=8), shifting(5, frames=8)
    one, two = still.clone(), still.clone()
    one[7:] = fast[7]
    two[6:7], two[7:] = fast[3], fast[6]
    output = score([one, two])
    assert output.parts["moving"].tolist() == pytest.approx([1 / 7, 2 / 7])
    assert output.raw.tolist() == [0, 1]


def test_frames_are_thinned_to_eight_a_second():
    """At 24 frames a second every third is seen: 1 pixel a frame becomes 3."""
    clip = shifting(1, frames=10)
    assert score([clip], fps=24.0).parts["magnitude"].item() == pytest.approx(3, abs=0.5)
    assert score([clip], fps=24.0).raw.item() == 1 and score([clip], fps=8.0).raw.item() == 0
    assert torch.equal(score([clip], fps=None).raw, score([clip], fps=8.0).raw)
    assert sampled(10, 24.0) == [0, 3, 6, 9] and sampled(4, 30.0) == [0] and sampled(3, 4.0) == [0, 1, 2]


def vbench(magnitudes, count, side, fps):
    """The published rule, with at least one pair."""
    threshold, wanted, seen = max(1.0, 8.0 / fps) * 6.0 * (side / 256.0), max(1, round(4 * (count / 16.0))), 0
    for magnitude in magnitudes:
        seen += magnitude > threshold
        if seen >= wanted:
            return True
    return False


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 30, width=32), min_size=1, max_size=40),
    st.integers(12, 1080),
    st.sampled_from([4.0, 8.0, 24.0]),
)
def test_rule_against_a_second_writing(magnitudes, side, fps):
    moved, share = moves(magnitudes, len(magnitudes) + 1, side, fps)
    assert moved == vbench(magnitudes, len(magnitudes) + 1, side, fps)
    assert 0 <= share <= 1


def test_mean_of_the_largest_twentieth():
    lengths = np.arange(7 * 9, dtype=np.float32).reshape(7, 9)
    assert largest_mean(lengths) == (62 + 61 + 60) / 3  # 5 % of 63 is 3
    assert largest_mean(lengths[:2, :3]) == 11


def test_what_cannot_be_judged():
    one = score([shifting(3, frames=1)])
    assert torch.isnan(one.raw).all() and "needs two frames" in one.errors[0]
    thinned = score([shifting(3, frames=3)], fps=24.0)
    assert not thinned.ok.any() and "3 frames of 128 x 96 pixels at 24 a second" in thinned.errors[0]
    assert not score([shifting(1, height=11, width=40)]).ok.any()
    assert score([shifting(1, height=12, width=40)]).ok.all()
