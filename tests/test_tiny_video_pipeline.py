"""The trained tiny video pipeline in assets/tiny-wan and the scripts that build it."""

from pathlib import Path

import numpy as np
import pytest
import tiny_video_vae
import torch
from build_tiny_video_pipeline import WORLD
from diffusers import WanPipeline
from tiny_builder import main

from diffrl.data.moving import prompts, render, scene_of
from diffrl.models.tiny import build_pipeline
from reward_models import RewardBatch, load_reward

ROOT = Path(__file__).parents[1]
ASSET = ROOT / "assets" / "tiny-wan"


def load(folder):
    """As any user would, without arguments."""
    pipeline = WanPipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def media(clips):
    """A pipeline's or renderer's clips (N, F, H, W, 3), uint8 or in [0, 1], as a scorer takes them."""
    clips = np.asarray(clips)
    clips = clips if clips.dtype == np.uint8 else np.rint(clips * 255).astype(np.uint8)
    return torch.from_numpy(clips).permute(0, 1, 4, 2, 3)


def strict(clips, texts):
    return float(load_reward("moving_shapes_strict")(RewardBatch(media(clips), texts)).raw.mean())


@pytest.fixture(scope="module")
def pipeline():
    return load(ASSET)


def test_the_asset_is_a_stock_pipeline(pipeline):
    for part in (pipeline.transformer, pipeline.text_encoder, pipeline.vae):
        assert {p.dtype for p in part.parameters()} == {torch.float32}
    scheduler = pipeline.scheduler.config
    assert (scheduler.prediction_type, scheduler.use_flow_sigmas, scheduler.flow_shift) == ("flow_prediction", True, 3)
    assert (pipeline.vae_scale_factor_temporal, pipeline.vae_scale_factor_spatial) == (4, 8)


def test_words_are_single_tokens_and_the_encoder_knows_the_special_ones(pipeline):
    tokenizer, config = pipeline.tokenizer, pipeline.text_encoder.config
    for prompt in prompts("train") + prompts("tune") + prompts("report"):
        ids = tokenizer(prompt.text).input_ids
        assert len(ids) == len(prompt.text.split()) + 1 == 6
        assert ids[-1] == config.eos_token_id and tokenizer.unk_token_id not in ids
    assert tokenizer("a pink cat").input_ids[1:3] == [tokenizer.unk_token_id] * 2
    assert config.pad_token_id == tokenizer.pad_token_id and config.vocab_size == len(tokenizer)


@pytest.mark.long
def test_reconstructions_pass_strictly_and_latents_are_normalised(pipeline):
    rng = np.random.default_rng(0)
    texts = [p.text for p in prompts("tune") + prompts("report") + prompts("train")[::2]]
    truths = media(np.stack([render(scene_of(text), rng) for text in texts]))
    vae = pipeline.vae
    with torch.no_grad():
        latents = vae.encode(truths.transpose(1, 2) / 127.5 - 1).latent_dist.mean
        clips = pipeline.video_processor.postprocess_video(vae.decode(latents).sample, output_type="np")
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    normal = (latents - mean) / std
    assert normal.mean((0, 2, 3, 4)).abs().max() < 0.1
    assert (normal.std((0, 2, 3, 4)) - 1).abs().max() < 0.1
    assert strict(clips, texts) >= 0.95


@pytest.mark.slow
def test_the_stock_call_works_at_both_lengths(pipeline):
    texts = [p.text for p in prompts("tune") + prompts("report")] * 4

    def generate(count, **options):
        generator = torch.Generator().manual_seed(0)
        size = {"height": 32, "width": 32, "num_frames": 9, "num_inference_steps": 10}
        return strict(pipeline(texts[:count], generator=generator, **size, **options).frames, texts[:count])

    assert 0.1 < generate(120, guidance_scale=1.0, max_sequence_length=8) < 0.6
    assert generate(60, guidance_scale=1.0) > 0.05
    assert generate(60, guidance_scale=3.0, max_sequence_length=8) > 0.08


def test_the_plain_call_gives_a_clip(pipeline):
    frames = pipeline("A blue square moving up.", height=32, width=32, num_frames=9, num_inference_steps=5).frames
    assert frames.shape == (1, 9, 32, 32, 3) and frames.std() > 0.01


@pytest.mark.parametrize("shape", [(31, 7), (5, 3, 3, 3, 3)])
def test_steps_of_muon_are_nearly_orthogonal(shape):
    torch.manual_seed(0)
    weight, gradient = torch.nn.Parameter(torch.zeros(shape)), torch.randn(shape)
    weight.grad = gradient.clone()
    tiny_video_vae.Muon([weight], lr=0.5).step()
    rows, columns = gradient.flatten(1).shape
    step = -weight.detach().flatten(1) / (0.5 * max(1.0, rows / columns) ** 0.5)
    u, _, v = torch.linalg.svd(gradient.flatten(1), full_matrices=False)
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.6 and values.max() < 1.3
    assert ((u.T @ step @ v.T) - torch.diag(torch.diag(u.T @ step @ v.T))).abs().max() < 1e-3


@pytest.mark.slow
def test_the_build_is_loadable_the_same_for_the_same_seed_and_takes_up_its_autoencoder(tmp_path, threads):

    def build(name, *options):
        main(WORLD, None, ["--tiny", "--threads", "1", "--seed", "3", "--out", str(tmp_path / name), *options])
        files = sorted((tmp_path / name).rglob("*.safetensors"))
        return {str(file.relative_to(tmp_path / name)): file.read_bytes() for file in files}

    keep = ["--vae", str(tmp_path / "vae")]
    first, again, resumed = build("first"), build("again", *keep), build("resumed", *keep)
    assert len(first) == 3
    assert first == again == resumed
    options = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 2, "guidance_scale": 1.0}
    assert load(tmp_path / "first")("a red circle", **options).frames.shape == (1, 5, 32, 32, 3)


def test_a_second_network_makes_it_a_wan_2_2():
    pipeline = build_pipeline("wan", ["a", "red", "circle"], seed=0, boundary_ratio=0.875)
    pipeline.set_progress_bar_config(disable=True)
    options = {"height": 32, "width": 32, "num_frames": 5, "max_sequence_length": 8, "num_inference_steps": 4}
    used = []
    for name in ("transformer", "transformer_2"):
        network = getattr(pipeline, name)
        network.register_forward_hook(lambda *_, name=name: used.append(name))
    pipeline("a red circle", guidance_scale=1.0, output_type="latent", **options)
    assert set(used) == {"transformer", "transformer_2"} and used == sorted(used)
