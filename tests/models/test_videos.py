"""Clips on disk: every byte and every frame comes back."""

import pytest
import torch
from PIL import Image

from diffrl.models.images import still, uint8_from_signed
from reward_models.media import read_media, save_media


def noise(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def written(media, path):
    save_media(media, path, 16.0)
    with Image.open(path) as image:
        return read_media(image)


def equal_frames(*lengths):
    return torch.cat([noise(1, 3, 11, 13, seed=i).expand(n, -1, -1, -1) for i, n in enumerate(lengths)])


@pytest.mark.parametrize(
    "clip",
    [noise(7, 3, 11, 13), equal_frames(1), equal_frames(5), equal_frames(3, 1, 4), equal_frames(2, 2, 2, 2, 1)],
    ids=["all differ", "one frame", "all equal", "some equal", "pairs"],
)
def test_a_clip_comes_back_byte_for_byte_with_all_its_frames(clip, tmp_path):
    assert torch.equal(written(clip, tmp_path / "clip.webp"), clip)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.webp"]


def test_a_still_shows_the_first_and_the_last_frame():
    clip = noise(9, 3, 5, 7)
    shown = still(clip)
    assert shown.shape == (3, 12, 16)
    assert torch.equal(shown[:, :5, :7], clip[0]) and torch.equal(shown[:, 7:, 9:], clip[8])
    assert torch.equal(shown[:, :5, 9:], clip[3]) and torch.equal(shown[:, 7:, :7], clip[5])
    assert (shown[:, 5:7] == 250).all() and (shown[:, :, 7:9] == 250).all()
    assert torch.equal(still(clip[2]), clip[2])


def test_a_broken_video_is_named_by_its_row():
    from diffrl.models.images import BrokenPictureError

    videos = torch.zeros(3, 5, 3, 2, 2)
    videos[1, 4, 0, 0, 0] = torch.nan
    with pytest.raises(BrokenPictureError) as found:
        uint8_from_signed(videos)
    assert found.value.rows == [1]
    assert uint8_from_signed(torch.zeros(2, 5, 3, 2, 2)).shape == (2, 5, 3, 2, 2)
