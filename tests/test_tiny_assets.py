"""The three embedded pipelines: small, with a card that says what was measured, and built anew the same from a seed."""

import json
from pathlib import Path

import build_tiny_pipeline
import build_tiny_video_pipeline
import build_tiny_words
import pytest
from diffusers import StableDiffusion3Pipeline
from tiny_builder import main
from tiny_card import card

ROOT = Path(__file__).parents[1]
WORLDS = {
    "tiny-sd3": build_tiny_pipeline.WORLD,
    "tiny-wan": build_tiny_video_pipeline.WORLD,
    "tiny-words": build_tiny_words.WORLD,
}
SETTINGS = {
    "tiny-wan": {"max_sequence_length": 8, "height": 32, "width": 32, "frames": 9},
    "tiny-words": {"max_sequence_length": 1, "height": build_tiny_words.HEIGHT, "width": build_tiny_words.WIDTH},
}
MEASURED = {
    "tiny-sd3": {
        "generated, guidance_scale=1, max_sequence_length=1": (0.10, 0.27),
        "rendered truth": (0.98, 1),
        "VAE reconstruction": (0.97, 1),
        "rendered truth, captions of other pictures": (0, 0.03),
    },
    "tiny-wan": {
        "Euler, guidance_scale=1, max_sequence_length=8": (0.1, 0.4),
        "rendered truth": (1, 1),
        "VAE reconstruction": (0.95, 1),
        "rendered truth, captions of other clips": (0, 0.02),
    },
    "tiny-words": {
        "generated, held-out words, guidance_scale=1, max_sequence_length=1": (0.08, 0.4),
        "rendered truth": (0.97, 1),
        "VAE reconstruction": (0.93, 1),
        "rendered truth, prompts of other pictures": (0, 0.01),
    },
}
"""Shares of pictures that are right: a policy has something to learn, and no world or autoencoder is in its way."""


@pytest.mark.parametrize("name", WORLDS)
def test_an_asset_is_small_and_its_card_says_what_was_measured(name):
    asset = ROOT / "assets" / name
    assert sum(file.stat().st_size for file in asset.rglob("*") if file.is_file()) <= 15_000_000
    record = json.loads((asset / "build.json").read_text())
    share = "exact" if name == "tiny-words" else "strict"
    for what, (least, most) in MEASURED[name].items():
        assert least <= record["scores"][what][share] <= most, what
    assert (asset / "README.md").read_text() == card(record, WORLDS[name])
    if name in SETTINGS:
        assert json.loads((asset / "diffrl.json").read_text()) == SETTINGS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-sd3", "tiny-words"])
def test_a_build_is_loadable_and_the_same_for_the_same_seed(name, tmp_path, threads):
    def build(folder, seed):
        options = ["--tiny", "--threads", "1", "--seed", str(seed), "--out", str(tmp_path / folder)]
        main(WORLDS[name], None, options)
        files = sorted((tmp_path / folder).rglob("*.safetensors"))
        return {str(file.relative_to(tmp_path / folder)): file.read_bytes() for file in files}

    first, again, other = build("first", 3), build("again", 3), build("other", 4)
    assert len(first) == 5 and first == again
    assert {file for file in first if first[file] == other[file]} == {"text_encoder_3/model.safetensors"}  # zeros
    pipeline = StableDiffusion3Pipeline.from_pretrained(str(tmp_path / "first"))
    assert pipeline("a red circle", num_inference_steps=2, guidance_scale=1.0).images
