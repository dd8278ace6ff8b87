"""What a start would fetch is told before anything is fetched."""

import re
import socket
from pathlib import Path

import pytest
from recipe_tables import recipes

from diffrl.config import load_config
from diffrl.config.load import make_config
from diffrl.cost.repositories import NOT_KNOWN, size_of
from diffrl.errors import ConfigError
from diffrl.models.published import FOLDER, hub_facts, reward_facts
from diffrl.preflight.check import check_config
from diffrl.preflight.downloads import describe_downloads, downloads
from diffrl.preflight.machine import target_machine
from reward_models.registry import SCORERS, factory_of

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


LISTED = {
    "black-forest-labs/FLUX.1-dev": 33.7,  # transformer 23.8, T5 9.52, CLIP .25, VAE .17
    "Qwen/Qwen-Image": 57.7,
    "stabilityai/stable-diffusion-3.5-medium": 4.94 + 4.99 + 4.53 + 1.39 + 0.247 + 0.168,
    "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers": 5.0 + 1.42 + 4.99 + 0.241 + 1.25,
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": 5.68 + 4.97 + 4.9 + 4.97 + 5.0 + 2.89 + 0.508,
    "Tongyi-MAI/Z-Image": 12.3 + 8.04 + 0.168,
    "openai/clip-vit-large-patch14": 1.71,
    "yuvalkirstain/PickScore_v1": 3.94,
    "xswu/HPSv2": 1.97,
    "THUDM/ImageReward": 1.79,
}
"""GB of the files that are fetched, as their pages list them."""
GATED = {
    "black-forest-labs/FLUX.1-dev", "black-forest-labs/FLUX.1-Kontext-dev",
    "black-forest-labs/FLUX.2-klein-base-9B", "stabilityai/stable-diffusion-3-medium-diffusers",
    "stabilityai/stable-diffusion-3.5-medium", "stabilityai/stable-diffusion-3.5-large", "krea/Krea-2-Raw",
}  # fmt: skip
RECIPES = [recipe.path for recipe in recipes()]


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


def test_every_recipe_says_how_large_under_which_licence_and_behind_which_gate(empty_cache):
    for path in RECIPES:
        found = downloads(load_config(path))
        assert found, path
        for one in found:
            assert re.match(r"[\d.]+ [GM]B.*; licence: (?!not known)\S.*; (not |whether it is )?gated", one.note), one
            assert ("hf auth login" in one.note) == (one.name in GATED), one
        known = sum(one.size is not None for one in found)
        assert ("together" in describe_downloads(found)[-1]) == (known > 1), path


def test_sizes_are_those_of_the_files_that_are_fetched():
    for name, listed in LISTED.items():
        assert size_of(name) / 1e9 == pytest.approx(listed, rel=0.005), name
    named = [file.stem.replace("--", "/") for file in (ROOT / FOLDER).glob("*--*.json")]
    assert {name for name in named if hub_facts(name)["gated"]} == GATED


def test_repositories_of_rewards_are_those_that_they_name():
    """They are listed apart from the scorers, so that telling them imports nothing heavy."""
    repository = re.compile(r"(?<![\w./-])[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w-]*(?:\.[\w-]+)*(?![\w/])")
    for name in SCORERS:
        spec = factory_of(name).spec
        served = spec.memory is not None and "behind its server" in spec.memory
        if not served and "://" not in (spec.weights or ""):  # aesthetic: a head that is given, on CLIP
            facts = reward_facts().get(name, {"weights": {}})
            assert name in reward_facts() or spec.weights is None
            assert set(repository.findall(spec.weights or "")) == {*facts["weights"], *facts.get("configs", ())}


def test_what_is_not_known_is_not_made_up(empty_cache, run_settings):
    run_settings["model"]["path"] = "somebody/model"
    (one,) = downloads(make_config(run_settings))
    unknown = f"size {NOT_KNOWN}; licence: {NOT_KNOWN}; whether it is gated: {NOT_KNOWN}"
    assert (one.size, one.note) == (None, unknown)


def test_check_tells_what_is_not_here_and_fetches_nothing(empty_cache, run_settings):
    run_settings["rewards"] = [{"name": "hpsv2"}, {"name": "shapes"}]
    run_settings["eval"]["rewards"] = [{"name": "clip_score"}, {"name": "shapes_strict"}]
    text = "\n".join(check_config(make_config(run_settings)))
    assert HPS in text and CLIP in text and "fine but for what is not here yet" in text and str(empty_cache) not in text
    for wrong, problem in (
        ({"name": "geneval"}, "prompts.train must give include with every prompt"),
        ({"name": "video_align"}, "must score images"),
        (
            {"name": "pickscore", "options": {"no_such": 1}},
            "rewards.0: The reward pickscore does not take",
        ),
        ({"name": "pickscore", "options": {"model": "/no/such/folder"}}, "/no/such/folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            check_config(make_config(run_settings | {"rewards": [wrong]}))


def test_a_package_that_is_not_here_is_no_mistake_of_the_configuration(empty_cache, run_settings, monkeypatch):
    monkeypatch.setattr("reward_models.scoring.catalogue._is_installed", lambda module: module != "open_clip")
    run_settings["rewards"] = [{"name": "hpsv2"}, {"name": "shapes"}]
    *_, verdict, reason = check_config(make_config(run_settings))
    assert "valid, and cannot run on this machine" in verdict and "hpsv2" in reason and "'diffrl[clip]'" in reason
    text = "\n".join(check_config(make_config(run_settings), target=target_machine("h100", None)))
    assert "fine but for what is not here yet" in text and "hpsv2: pip install 'diffrl[clip]'" in text
    with pytest.raises(ConfigError, match="no_such"):  # its options are looked at all the same
        check_config(make_config(run_settings | {"rewards": [{"name": "hpsv2", "options": {"no_such": 1}}]}))
