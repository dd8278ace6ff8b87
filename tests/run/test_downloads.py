"""What a start would fetch is told before anything is fetched."""

import socket
from pathlib import Path

import pytest

from diffrl.config import load_config
from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.run.check import check_config
from diffrl.run.downloads import downloads
from diffrl.run.elsewhere import other_machine

ROOT = Path(__file__).parents[2]
CLIP, PICK, HPS = "openai/clip-vit-large-patch14", "yuvalkirstain/PickScore_v1", "xswu/HPSv2"
IMAGE_REWARD = "THUDM/ImageReward"
NEEDED = {
    "sd3/flow_grpo": {
        "facebook/mask2former-swin-small-coco-instance", CLIP, PICK, "stabilityai/stable-diffusion-3.5-medium",
    },
    "flux/mix_grpo": {
        "CarperAI/pickapic_v1_no_images_training_sfw", HPS, PICK, IMAGE_REWARD, CLIP, "black-forest-labs/FLUX.1-dev",
    },
    "wan/diffrl": {
        "WenhaoWang/VidProM", "KwaiVGI/VideoReward", "Qwen/Qwen2-VL-2B-Instruct", PICK, IMAGE_REWARD,
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    },
    "sd3/crd": {PICK, "stabilityai/stable-diffusion-3.5-medium"},
}  # fmt: skip
"""Repositories of some recipes, read by hand from the recipes and from the scorers' defaults."""


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """The hub may be asked, its cache is empty, and whoever asks it is found out."""

    def connect(*args):
        raise AssertionError("somebody asks the network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", connect)
    return tmp_path / "hub"


@pytest.mark.parametrize("recipe", NEEDED)
def test_all_that_a_recipe_needs_is_told_and_what_is_here_is_not(recipe, empty_cache):
    config = load_config(ROOT / f"configs/{recipe}.yaml")
    told = downloads(config)
    assert {one.name for one in told} == NEEDED[recipe] and len(told) == len(NEEDED[recipe])
    assert {one.kind for one in told if "pickapic" in one.name or "VidProM" in one.name} <= {"dataset"}
    assert all(use.split()[0] in ("rewards", "eval.rewards", "prompts.train", "prompts.eval", "model.path")
               for one in told for use in one.uses)  # fmt: skip
    (empty_cache / "models--yuvalkirstain--PickScore_v1" / "snapshots" / "0123").mkdir(parents=True)
    assert {one.name for one in downloads(config)} == NEEDED[recipe] - {PICK}


def test_check_tells_what_is_not_here_and_fetches_nothing(empty_cache, run_settings):
    run_settings["rewards"] = [{"name": "hpsv2"}, {"name": "shapes"}]
    run_settings["eval"]["rewards"] = [{"name": "clip_score"}, {"name": "shapes_strict"}]
    text = "\n".join(check_config(make_config(run_settings)))
    assert HPS in text and CLIP in text and "fine but for what is not here yet" in text and str(empty_cache) not in text
    for wrong, problem in (
        ({"name": "geneval"}, "prompts.train must give include with every prompt"),
        ({"name": "video_align"}, "must score images"),
        ({"name": "pickscore", "options": {"no_such": 1}}, "rewards.0.options do not fit the reward pickscore"),
        ({"name": "pickscore", "options": {"model": "/no/such/folder"}}, "/no/such/folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check_config(make_config(run_settings | {"rewards": [wrong]}))


def test_a_package_that_is_not_here_is_no_mistake_of_the_configuration(empty_cache, run_settings, monkeypatch):
    monkeypatch.setattr("reward_models.scoring.catalogue._is_installed", lambda module: module != "open_clip")
    run_settings["rewards"] = [{"name": "hpsv2"}, {"name": "shapes"}]
    *_, verdict, reason = check_config(make_config(run_settings))
    assert "valid, and cannot run on this machine" in verdict and "hpsv2" in reason and "'diffrl[clip]'" in reason
    text = "\n".join(check_config(make_config(run_settings), elsewhere=other_machine("h100", None)))
    assert "fine but for what is not here yet" in text and "hpsv2: pip install 'diffrl[clip]'" in text
    with pytest.raises(ConfigError, match="no_such"):  # its options are looked at all the same
        check_config(make_config(run_settings | {"rewards": [{"name": "hpsv2", "options": {"no_such": 1}}]}))
