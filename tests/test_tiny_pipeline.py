"""The trained tiny pipeline in assets/tiny-sd3 and the script that builds it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from diffrl.data.shapes import prompts, render, scene_of
from reward_models import RewardBatch, load_reward

ROOT = Path(__file__).parents[1]
ASSET = ROOT / "assets" / "tiny-sd3"


def load(folder):
    """As any user would, without arguments."""
    pipeline = StableDiffusion3Pipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def stack(pictures):
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2)


def strict(pictures, texts):
    return float(load_reward("shapes_strict")(RewardBatch(stack(pictures), texts)).raw.mean())


@pytest.fixture(scope="module")
def pipeline():
    return load(ASSET)


def test_the_asset_is_a_stock_pipeline(pipeline):
    assert {p.dtype for p in pipeline.transformer.parameters()} == {torch.float32}
    assert {p.dtype for p in pipeline.text_encoder.parameters()} == {torch.float32}
    assert pipeline.scheduler.config.shift == 1.0


def test_words_are_single_tokens_and_the_encoders_know_the_special_ones(pipeline):
    for tokenizer, encoder in (
        (pipeline.tokenizer, pipeline.text_encoder),
        (pipeline.tokenizer_2, pipeline.text_encoder_2),
    ):
        for prompt in prompts("train")[::5] + prompts("tune") + prompts("report"):
            ids = tokenizer(prompt.text).input_ids
            assert len(ids) == len(prompt.text.split()) + 2 <= tokenizer.model_max_length
            assert (ids[0], ids[-1]) == (encoder.config.bos_token_id, encoder.config.eos_token_id)
        assert encoder.config.pad_token_id == tokenizer.pad_token_id
        assert tokenizer.eos_token_id not in tokenizer("an Écureuil, 7!", add_special_tokens=False).input_ids


@pytest.mark.long
def test_reconstructions_pass_strictly(pipeline):
    rng = np.random.default_rng(0)
    texts = [p.text for p in (prompts("tune") + prompts("report") + prompts("train")[::20])[::4]]
    truths = stack([render(scene_of(text), rng) for text in texts])
    with torch.no_grad():
        latents = pipeline.vae.encode(truths / 127.5 - 1).latent_dist.mean
        pictures = pipeline.image_processor.postprocess(pipeline.vae.decode(latents).sample, output_type="pil")
    normal = (latents - pipeline.vae.config.shift_factor) * pipeline.vae.config.scaling_factor
    assert abs(float(normal.mean())) < 0.05 and abs(float(normal.std()) - 1) < 0.05
    assert strict(pictures, texts) >= 0.95


def test_the_third_text_encoder_gives_zeros_for_any_prompt(pipeline):
    ids = pipeline.tokenizer_3(["a red circle", ""], padding="max_length", max_length=5, return_tensors="pt").input_ids
    assert ids.shape == (2, 5)
    assert torch.equal(pipeline.text_encoder_3(ids)[0], torch.zeros(2, 5, 128))


@pytest.mark.slow
def test_the_stock_call_works_at_both_lengths(pipeline):
    texts = [p.text for p in prompts("tune") + prompts("report")][:120]

    def generate(count, **options):
        generator = torch.Generator().manual_seed(0)
        result = pipeline(texts[:count], num_inference_steps=10, generator=generator, **options)
        return strict(result.images, texts[:count])

    assert 0.1 < generate(120, guidance_scale=1.0, max_sequence_length=1) < 0.45
    assert generate(40, guidance_scale=1.0) > 0.05
    assert generate(40) > 0.05  # everything default: guidance 7 and 256 T5 tokens
