"""Rewards that stand on the same network hold it once, and score as each does alone."""

import torch

from diffrl.config.rewards import RewardSettings
from diffrl.training.scorers import make_scorers
from reward_models import RewardBatch, load_reward
from tests.reward_models.tiny_basic import save_clip, save_mask2former


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
