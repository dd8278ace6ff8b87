"""The trained tiny pipeline in assets/tiny-words and the script that builds it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from build_tiny_words import WORLD
from diffusers import StableDiffusion3Pipeline
from tiny_builder import Recipe

from diffrl.data.words import HEIGHT, WIDTH, parse_prompt, prompts, words
from diffrl.data.worlds import SPLITS
from reward_models import load_reward

ROOT = Path(__file__).parents[1]
ASSET = ROOT / "assets" / "tiny-words"


@pytest.fixture(scope="module")
def pipeline():
    """As any user would, without arguments."""
    loaded = StableDiffusion3Pipeline.from_pretrained(str(ASSET))
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_a_word_in_quotes_is_spelled_letter_by_letter(pipeline):
    for tokenizer, encoder in (
        (pipeline.tokenizer, pipeline.text_encoder),
        (pipeline.tokenizer_2, pipeline.text_encoder_2),
    ):
        assert (encoder.config.bos_token_id, encoder.config.eos_token_id) == (
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        )
        for split in SPLITS:
            for prompt in prompts(split)[:400]:
                sign, tokens = parse_prompt(prompt.text), tokenizer.tokenize(prompt.text)
                spelled = [*sign.word[:-1], sign.word[-1] + "</w>"]
                assert tokens == ["the", "word", '"</w>', *spelled, '"</w>', "in", sign.ink, "on", sign.paper]
                assert len(tokens) + 2 <= tokenizer.model_max_length


def test_no_held_out_word_is_drawn_for_training(tmp_path):
    pictures, captions, rows = WORLD.render(Recipe(0, tmp_path, (1,), 1, count=2000, samples=1))
    assert pictures.shape == (2000, 3, HEIGHT, WIDTH) and captions[-1] == "" and len(set(captions)) == len(captions)
    drawn = [parse_prompt(captions[row]).word for row in rows]
    assert not set(drawn) & {*words("tune"), *words("report")}
    assert set(drawn[::2]) <= set(words("train")) and len(set(drawn[1::2]) - set(words("train"))) > 900


@pytest.mark.long
def test_held_out_words_are_spelled_now_and_then(pipeline):
    pytest.importorskip("rapidocr")
    asked = prompts("report")[:40]
    noise = torch.randn(40, 4, HEIGHT // 4, WIDTH // 4, generator=torch.Generator().manual_seed(0))
    options = {"num_inference_steps": 10, "guidance_scale": 1.0, "max_sequence_length": 1}
    images = pipeline([p.text for p in asked], latents=noise, height=HEIGHT, width=WIDTH, **options).images
    pictures = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)
    assert 0.02 < float(score(pictures, asked)) < 0.6


def score(pictures, asked):
    from reward_models import RewardBatch

    exact = load_reward("ocr_exact", detect=False, threads=1)
    return exact(RewardBatch(pictures, [p.text for p in asked], [p.metadata for p in asked])).raw.mean()
