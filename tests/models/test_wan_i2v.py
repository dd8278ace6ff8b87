"""Wan's image to video with images, against the stock pipeline: through CLIP, and with two networks without it."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from diffrl.errors import ConfigError
from diffrl.functional.dynamics import ode_step
from diffrl.models.adapter import EditingAdapter
from diffrl.models.encodings import PromptEncodings
from diffrl.models.loading import load_adapter
from diffrl.models.placement import Placement
from diffrl.models.tiny import build_pipeline, save_pipeline
from diffrl.records import Prompt
from tests.conftest import WORDS

PROMPTS = ["a red circle", "two blue squares above a green triangle"]
STEPS = 5


@pytest.fixture(scope="module")
def two_networks(tmp_path_factory, read_once):
    """Wan 2.2's layout: the second network for timesteps below 900, and no CLIP."""
    folder = tmp_path_factory.mktemp("pipelines") / "i2v22"
    pipeline = build_pipeline("wan_i2v", WORDS.split(), seed=0, boundary_ratio=0.9)
    save_pipeline(pipeline, folder, {"max_sequence_length": 8})
    return read_once(folder)


@pytest.fixture
def load(random_pipelines, two_networks):
    def loaded(two=False, **options):
        folder = two_networks if two else random_pipelines("wan_i2v")
        adapter = load_adapter("wan_i2v", str(folder), dtype="float32", **options)
        adapter.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        return adapter

    return loaded


def image(seed, height=32, width=48):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def pixels(picture):
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def normal(adapter, count):
    draw = torch.Generator().manual_seed(5)
    return adapter.init_latents(lambda shape: torch.randn(count, *shape, generator=draw))


def euler(adapter, latents, conditioning, guidance_scale):
    sigmas = adapter.sigmas(STEPS)
    for s, n in zip(sigmas, sigmas[1:], strict=False):
        v = adapter.velocity(latents, s.expand(len(latents)), conditioning, guidance_scale)
        latents = ode_step(latents, v, s, n).mean
    return latents


@pytest.mark.parametrize(
    ("two", "guidance", "size"),
    [(False, 1.0, (32, 48)), (False, 5.0, (64, 96)), (True, 1.0, (64, 96)), (True, 5.0, (32, 48))],
)
def test_videos_equal_the_stock_pipeline_from_the_same_latents(load, two, guidance, size):
    """Of images of the size that is drawn, and of larger ones that are scaled to it: one stock call each."""
    adapter = load(two, height=32, width=48, frames=9)
    assert isinstance(adapter, EditingAdapter)
    images = [image(seed, *size) for seed in range(len(PROMPTS))]
    latents = normal(adapter, len(PROMPTS))
    conditioning = adapter.encode_edits(PROMPTS, [pixels(one) for one in images])
    options = {"num_inference_steps": STEPS, "max_sequence_length": adapter.max_sequence_length}
    options |= {"guidance_scale": guidance, "num_frames": 9, **adapter.stock_call()}
    stock, clips = [], []
    with torch.no_grad():
        reached = euler(adapter, latents, conditioning, guidance)
        for i, one in enumerate(images):
            scaled = one.resize((48, 32), Image.Resampling.LANCZOS)
            given = {"image": scaled, "prompt": PROMPTS[i], **options}
            for kept, kind in ((stock, "latent"), (clips, "np")):
                kept.append(adapter.pipeline(**given, latents=latents[i : i + 1].clone(), output_type=kind).frames)
        moved = [
            euler(adapter, latents, {**conditioning, name: rows.roll(1, 0)}, guidance)
            for name, rows in conditioning.items()
            if name in ("first_frame", "image_embeds")
        ]
    torch.testing.assert_close(reached, torch.cat(stock), rtol=1e-4, atol=1e-5)
    assert len(moved) == 2 - two and all((reached - other).abs().mean() > 1e-3 for other in moved)
    shown = torch.from_numpy((np.concatenate(clips) * 255).round().astype("uint8")).movedim(-1, -3)
    decoded = adapter.decode(reached)
    assert decoded.shape == (2, 9, 3, 32, 48) and (decoded.int() - shown.int()).abs().max() <= 1
