import pytest
import torch

from reward_models import RewardBatch, load_reward
from reward_models.self_test import noise

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


@pytest.mark.parametrize("side", [(1, 65_501), (0, 7)])
def test_a_picture_that_no_jpeg_can_hold_is_not_scored(side):
    picture = torch.zeros(3, *side, dtype=torch.uint8)
    output = load_reward(NAMES[0])(batch_of(picture, picture))
    assert output.ok.tolist() == [False] * 2 and output.raw.isnan().all() and "65,500" in output.errors[1]
