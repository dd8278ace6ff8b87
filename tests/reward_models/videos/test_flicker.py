"""Against NumPy in double precision, pair by pair as VBench does it, and against cases known beforehand."""

import numpy as np
import pytest
import torch

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.self_test import self_test

NAMES = ("temporal_flicker", "motion_smoothness_proxy")


def random_clips(count=2, frames=5, height=13, width=17, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, frames, 3, height, width), generator=generator, dtype=torch.uint8)


def score(name, media, **options):
    return load_reward(name, **options)(RewardBatch(media, ["a"] * len(media), fps=8.0))


def vbench_flicker(clip):
    frames = clip.numpy().astype(np.float64)
    pairs = [np.mean(np.abs(frames[i] - frames[i + 1])) for i in range(len(frames) - 1)]
    return (255.0 - np.mean(pairs)) / 255.0


def smoothness(clip):
    frames = clip.numpy().astype(np.float64)
    bends = [np.abs(frames[i] - (frames[i - 1] + frames[i + 1]) / 2).mean() for i in range(1, len(frames) - 1)]
    return 1 - np.mean(bends) / 255


def test_formulas():
    media = random_clips()
    assert score(NAMES[0], media).raw.tolist() == pytest.approx([vbench_flicker(clip) for clip in media], rel=1e-6)
    assert score(NAMES[1], media).raw.tolist() == pytest.approx([smoothness(clip) for clip in media], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_is_best_until_the_gate(name):
    frozen = random_clips(1, 1).expand(-1, 6, -1, -1, -1)
    assert score(name, frozen).raw.item() == 1
    assert score(name, frozen, motion_gate=0.01).raw.item() == 0


@pytest.mark.parametrize("name", NAMES)
def test_gate_scales_what_changes_less(name):
    media = random_clips(1)
    change = 1 - vbench_flicker(media[0])
    plain = score(name, media)
    assert plain.parts["change"].item() == pytest.approx(change, rel=1e-6)
    assert torch.equal(plain.parts["steadiness"], plain.raw)
    assert score(name, media, motion_gate=change * 0.9).raw.item() == plain.raw.item()
    assert score(name, media, motion_gate=change * 2).raw.item() == pytest.approx(plain.raw.item() / 2, rel=1e-6)


@pytest.mark.parametrize(("name", "frames"), zip(NAMES, (1, 2), strict=True))
def test_too_few_frames(name, frames):
    output = score(name, random_clips(2, frames))
    assert torch.isnan(output.raw).all() and not output.ok.any()
    assert f"needs {frames + 1} frames, and the clip has {frames}" in output.errors[0]


@pytest.mark.parametrize("name", NAMES)
def test_options_and_self_test(name):
    for gate in (-0.1, 1.5, float("nan")):
        with pytest.raises(RewardError, match="motion_gate of .* must be in"):
            load_reward(name, motion_gate=gate)
    assert self_test(load_reward(name, motion_gate=0.05)).passed
