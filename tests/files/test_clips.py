"""A clip has one score, whichever file holds it and whatever else is in its batch."""

import numpy as np
import pytest
import torch
from PIL import Image

from reward_models import load_reward, score_media
from reward_models.media import open_media, save_media
from reward_models.self_test import clip
from tests.files.made import video

pytest.importorskip("av")
PROMPT = "a red circle moving right"
REWARDS = {
    "temporal_flicker": {},
    "moving_shapes": {},
    "dynamic_degree_proxy": {},
    "motion_smoothness_proxy": {},
    "video_mean": {"reward": "contrast"},
}


def scores(name, items, **options):
    return score_media(load_reward(name, **REWARDS[name]), items, [PROMPT] * len(items), **options).raw.tolist()


@pytest.fixture(scope="module")
def moving():
    return clip("red", "circle")[:, :, ::2, ::2].contiguous()


@pytest.mark.parametrize("name", REWARDS)
def test_the_container_makes_no_difference(name, moving, tmp_path):
    frames = moving.permute(0, 2, 3, 1).contiguous().numpy()
    save_media(moving, tmp_path / "a.webp", 8)
    first, *others = map(Image.fromarray, frames)
    first.save(tmp_path / "a.png", save_all=True, append_images=others, duration=125)
    video(frames, "ffv1", form="bgr0")(tmp_path / "a.mkv")
    video(frames, "mpeg4", qmin="1", qmax="1")(tmp_path / "a.mp4")
    (expected,) = scores(name, [moving], fps=8.0)
    lossless = scores(name, [tmp_path / "a.webp", tmp_path / "a.png", tmp_path / "a.mkv"])
    assert lossless == [expected] * 3
    assert scores(name, [tmp_path / "a.mp4"]) == [pytest.approx(expected, rel=0.05, abs=0.05)]


@pytest.mark.parametrize("name", REWARDS)
def test_four_at_once_are_scored_as_each_alone(name, moving):
    clips = [moving, moving.flip(0).contiguous(), moving // 2, moving[:1].expand_as(moving).contiguous()]
    alone = [value for one in clips for value in scores(name, [one], fps=8.0)]
    assert scores(name, clips, fps=8.0, batch_size=4) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(("suffix", "options"), [("webp", {"lossless": True}), ("png", {}), ("gif", {})])
def test_frames_that_an_encoder_merged_count_as_often_as_they_are_shown(suffix, options, tmp_path):
    order = [0, 0, 1, 1, 1, 2, 3, 3, 4, 5, 5, 6]
    shades = [Image.fromarray(np.full((16, 24, 3), 30 * shade, np.uint8)) for shade in range(7)]
    first, *others = [shades[number] for number in order]
    file = tmp_path / f"a.{suffix}"
    first.save(file, save_all=True, append_images=others, duration=100, **options)
    with Image.open(file) as image:
        assert image.n_frames == 7
    media, fps = open_media(file)
    assert (media[:, 0, 0, 0] // 30).tolist() == order and fps == pytest.approx(10)
    expected = torch.stack([torch.full((3, 16, 24), 30 * shade, dtype=torch.uint8) for shade in order])
    assert scores("temporal_flicker", [file]) == scores("temporal_flicker", [expected], fps=10.0)


def test_a_clip_that_stands_still_is_a_clip_with_its_rate(tmp_path):
    still = torch.full((9, 3, 32, 32), 90, dtype=torch.uint8)
    save_media(still, tmp_path / "a.webp", 8.0)
    media, fps = open_media(tmp_path / "a.webp")
    assert torch.equal(media, still) and fps == 8.0
    assert scores("temporal_flicker", [tmp_path / "a.webp"]) == scores("temporal_flicker", [still], fps=8.0)
