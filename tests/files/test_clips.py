"""A clip has one score, whichever file holds it; how each is read is tested in test_readers.py."""

import pytest
from PIL import Image

from reward_models import load_reward, score_media
from reward_models.media import save_media
from reward_models.self_test import clip
from tests.files.made import video

pytest.importorskip("av")
PROMPT = "a red circle moving right"
REWARDS = {
    "temporal_flicker": {},
    "moving_shapes": {},
    "dynamic_degree_proxy": {},
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
