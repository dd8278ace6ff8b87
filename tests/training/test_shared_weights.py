"""Rewards that stand on the same network hold it once, and score as each does alone."""

import importlib

import pytest
import torch

from diffrl.config.rewards import RewardSettings
from diffrl.training.scorers import make_scorers
from reward_models import RewardBatch, load_reward
from tests.reward_models.tiny_basic import save_clip, save_mask2former
from tests.reward_models.tiny_clip import BLIP, bert_tokenizer, image_reward_state, save_hps
from tests.reward_models.tiny_vlm import save_hpsv3, save_video_align


def files_of(name, folder):
    """Tiny weights of a reward as its options, and where it reads them."""
    if name == "hpsv2":
        return {"architecture": save_hps(folder), "checkpoint": str(folder)}, "images.hpsv2"
    if name == "image_reward":
        torch.save(image_reward_state(), folder / "ImageReward.pt")
        given = {"checkpoint": str(folder), "tokenizer": str(bert_tokenizer(folder / "bert")), "config": BLIP}
        return given, "images.image_reward"
    save, place = {"hpsv3": (save_hpsv3, "images.hpsv3"), "video_align": (save_video_align, "videos.video_align")}[name]
    checkpoint, base = save(folder)
    return {"checkpoint": str(checkpoint), "model": str(base)}, place


@pytest.mark.parametrize(
    ("name", "other"),
    [
        pytest.param("hpsv2", {"antialias": False}, marks=pytest.mark.long),
        pytest.param("hpsv3", {"instruction": "Is it {text_prompt}? <|Reward|>"}, marks=pytest.mark.long),
        ("image_reward", {}),
        pytest.param("video_align", {"use": "MQ"}, marks=pytest.mark.long),
    ],
)
def test_a_twin_reads_its_file_once(name, other, tmp_path, monkeypatch):
    """Counted: how often the file is read, for the reward, for another view of it, and for its held-out twin."""
    given, place = files_of(name, tmp_path)
    module, read = importlib.import_module(f"reward_models.{place}"), []
    load = module.read_state
    monkeypatch.setattr(module, "read_state", lambda path, *rest: read.append(path) or load(path, *rest))
    wanted = [RewardSettings(name=name, options=given), RewardSettings(name=name, options=given | other)]
    copies = {}
    trained = [one.scorer for one in make_scorers(wanted, "rewards", copies=copies)]
    (twin,) = make_scorers([RewardSettings(name=name, options=given)], "eval.rewards", copies=copies)
    assert len(read) == 1
    make_scorers([RewardSettings(name=name, options=given, dtype="bfloat16")], "eval.rewards", copies=copies)
    assert len(read) == 2, "another precision is another copy"

    shape = (2, 4, 3, 56, 56) if name == "video_align" else (2, 3, 56, 56)
    media = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = RewardBatch(media, ["a red circle", "blue"], fps=8.0)
    for scorer, options in zip((*trained, twin.scorer), (given, given | other, given), strict=True):
        alone, together = load_reward(name, **options)(batch), scorer(batch)
        assert together.ok.all() and torch.equal(alone.raw, together.raw)


def test_twins_share_and_score_as_each_does_alone(tmp_path):
    model, clip = str(save_mask2former(tmp_path / "detector")), str(save_clip(tmp_path / "clip"))
    eyes = {"model": model, "clip_model": clip, "side": 64}
    ours = [("geneval", eyes), ("clip_score", {"model": clip})]
    copies = {}
    trained = make_scorers([RewardSettings(name=name, options=given) for name, given in ours], "rewards", copies=copies)
    twin = RewardSettings(name="geneval_strict", options=eyes | {"threshold": 0.2})
    other = RewardSettings(name="clip_score", options={"model": clip}, dtype="bfloat16")
    held_out = make_scorers([twin, other], "eval.rewards", copies=copies)
    geneval, clip_score, strict, half = (one.scorer for one in (*trained, *held_out))
    assert geneval.detector.model is strict.detector.model
    assert geneval.colors.towers is strict.colors.towers is clip_score.towers is not half.towers
    assert half.towers.dtype == torch.bfloat16 and clip_score.towers.dtype == torch.float32

    pictures = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    names = list(geneval.detector.classes)
    metadata = [{"include": [{"class": name, "count": 1, "color": "red"}]} for name in names[:3]]
    batch = RewardBatch(media=pictures, prompts=["a red thing"] * 3, metadata=metadata)
    alone = [load_reward(name, **given) for name, given in (*ours, ("geneval_strict", twin.options))]
    assert alone[0].detector.model is not alone[2].detector.model
    for one, together in zip(alone, (geneval, clip_score, strict), strict=True):
        assert torch.equal(one(batch).raw, together(batch).raw)
