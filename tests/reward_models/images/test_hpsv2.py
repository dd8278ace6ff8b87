"""HPSv2 against CLIP written out by hand and torchvision's preprocessing, from the tensors of the checkpoint."""

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as vision

from reward_models import RewardBatch, RewardError, load_reward
from tests.reward_models.images import clip_by_hand as hand
from tests.reward_models.images.test_clip_score import pictures
from tests.reward_models.tiny_clip import SIDE, hpsv2, save_hps

PROMPTS = ["a red circle", "two blue squares, and a green triangle", "a red circle", "word " * 100]


def longest_side(picture, antialias):
    """ToTensor, longer side to SIDE as float, black around, normalise."""
    pixels = vision.to_tensor(hand.as_image(picture))
    scale = SIDE / max(pixels.shape[1:])
    height, width = (round(length * scale) for length in pixels.shape[1:])
    pixels = vision.resize(pixels, [height, width], InterpolationMode.BICUBIC, antialias=antialias)
    left, top = (SIDE - width) // 2, (SIDE - height) // 2
    pixels = vision.pad(pixels, [left, top, SIDE - width - left, SIDE - height - top], fill=0)
    return vision.normalize(pixels, hand.MEAN, hand.STD)


def expected(path, media, prompts, antialias=True):
    """Cosines, without the logit scale."""
    import open_clip

    state = hand.from_open_clip(torch.load(path, weights_only=True)["state_dict"])
    tokenizer, scores = open_clip.SimpleTokenizer(), []
    for picture, prompt in zip(media, prompts, strict=True):
        tokens = [tokenizer.sot_token_id, *tokenizer.encode(prompt)][:76] + [tokenizer.eot_token_id]
        image = hand.image_embedding(longest_side(picture, antialias), state, activation="gelu")
        scores.append(image @ hand.text_embedding(tokens, state, activation="gelu"))
    return torch.stack(scores)


@pytest.mark.parametrize("size", [(37, 53), (28, 19)])
def test_scores_are_cosines_of_clip_by_hand(tmp_path, size):
    scorer, media = hpsv2(tmp_path), pictures(4, *size)
    raw = scorer(RewardBatch(media, PROMPTS)).raw
    wanted = expected(tmp_path / "hps" / "HPS_v2.1_compressed.pt", media, PROMPTS)
    assert wanted.std() > 0.05
    torch.testing.assert_close(raw, wanted, rtol=1e-4, atol=1e-5)


def test_without_antialias_as_in_the_paper(tmp_path):
    media = pictures(4, 61, 47)
    raw = hpsv2(tmp_path, antialias=False)(RewardBatch(media, PROMPTS)).raw
    path = tmp_path / "hps" / "HPS_v2.1_compressed.pt"
    torch.testing.assert_close(raw, expected(path, media, PROMPTS, antialias=False), rtol=1e-4, atol=1e-5)
    assert (raw - expected(path, media, PROMPTS, antialias=True)).abs().max() > 0.01


def test_each_version_has_its_file(tmp_path):
    name = save_hps(tmp_path, "HPS_v2_compressed.pt")
    for version in ("2.0", 2.0):
        assert load_reward("hpsv2", version=version, checkpoint=str(tmp_path), architecture=name)
    with pytest.raises(RewardError, match="looks for HPS_v2.1_compressed.pt in .*, where it is not"):
        load_reward("hpsv2", checkpoint=str(tmp_path), architecture=name)
    with pytest.raises(RewardError, match="version must be one of 2.0, 2.1. Got 'v3'"):
        load_reward("hpsv2", version="v3")


def test_other_checkpoints_are_refused(tmp_path):
    name = save_hps(tmp_path)
    path = tmp_path / "HPS_v2.1_compressed.pt"
    state = torch.load(path)["state_dict"]
    for changed, sentence in (
        ({key: value for key, value in state.items() if key != "visual.proj"}, "missing: visual.proj"),
        (state | {"visual.proj": torch.ones(24, 7)}, "of another shape: visual.proj"),
    ):
        torch.save({"state_dict": changed}, path)
        with pytest.raises(RewardError, match=f"do not fit the reward hpsv2: {sentence}.*another model's file"):
            load_reward("hpsv2", checkpoint=str(path), architecture=name)
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(RewardError, match="the weights of the reward hpsv2, cannot be read"):
        load_reward("hpsv2", checkpoint=str(path), architecture=name)
    with pytest.raises(RewardError, match="that of HPSv2 is ViT-H-14. Got 'ViT-Z'"):
        load_reward("hpsv2", checkpoint=str(path), architecture="ViT-Z")
