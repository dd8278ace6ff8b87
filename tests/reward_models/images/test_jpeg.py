import pytest
import torch

from reward_models import RewardBatch, load_reward
from reward_models.self_test import drawing, noise
from reward_models.serving.server import background

NAMES = ("jpeg_compressibility", "jpeg_incompressibility")


def batch_of(*pictures):
    return RewardBatch(torch.stack(pictures), ["a picture"] * len(pictures))


def test_sizes_are_those_of_another_encoder():
    """OpenCV's JPEG at quality 95 differs in its headers and little else."""
    cv2 = pytest.importorskip("cv2")
    pictures = [noise(256, seed=3), noise(256, seed=4)[:, :211, :173].contiguous()]
    for picture in pictures:
        ok, data = cv2.imencode(".jpg", picture.flip(0).permute(1, 2, 0).numpy(), [cv2.IMWRITE_JPEG_QUALITY, 95])
        assert ok
        expected = len(data) / 1000
        assert load_reward(NAMES[1])(batch_of(picture)).raw.item() == pytest.approx(expected, rel=0.01)
        assert load_reward(NAMES[0])(batch_of(picture)).raw.item() == pytest.approx(-expected, rel=0.01)


def test_order_and_sign():
    flat, drawn = torch.full((3, 97, 101), 128, dtype=torch.uint8), drawing("red", "circle")[:, :97, :101]
    raw = load_reward("jpeg_incompressibility")(batch_of(flat, drawn, noise()[:, :97, :101])).raw
    assert 0 < raw[0] < raw[1] < raw[2]
    less = load_reward("jpeg_compressibility")(batch_of(flat, drawn, noise()[:, :97, :101])).raw
    assert torch.equal(less, -raw)


def test_size_in_kilobytes_of_a_thousand(tmp_path):
    from reward_models.media import to_pil

    to_pil(noise(64)).save(tmp_path / "x.jpg", quality=95)
    assert load_reward("jpeg_incompressibility")(batch_of(noise(64))).raw.item() == pytest.approx(
        (tmp_path / "x.jpg").stat().st_size / 1000, abs=1e-4
    )


@pytest.mark.parametrize("side", [(1, 65_501), (65_501, 1), (0, 7)])
def test_a_picture_that_no_jpeg_can_hold_is_not_scored(side):
    picture = torch.zeros(3, *side, dtype=torch.uint8)
    output = load_reward(NAMES[0])(batch_of(picture, picture))
    assert output.ok.tolist() == [False] * 2 and output.raw.isnan().all() and "65,500" in output.errors[1]


def test_the_server_answers_so_too():
    with background({NAMES[0]: load_reward(NAMES[0])}) as url:
        remote = load_reward("remote", url=url, reward=NAMES[0], retries=0)
        (error,) = remote(batch_of(torch.zeros(3, 1, 65_501, dtype=torch.uint8))).errors
        assert "65,500" in error
        assert remote(batch_of(torch.zeros(3, 1, 65_500, dtype=torch.uint8))).ok.all()
