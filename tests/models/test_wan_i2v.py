"""Wan's image to video with images, against the stock pipeline: through CLIP, and with two networks without it."""

import copy

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from diffrl.errors import ConfigError
from diffrl.functional.dynamics import ode_step
from diffrl.models.adapter import EditingAdapter
from diffrl.models.encodings import PromptEncodings
from diffrl.models.families.wan_i2v import WanImageAdapter
from diffrl.models.loading import load_adapter
from diffrl.models.placement import Placement
from diffrl.models.tiny import build_pipeline, save_pipeline
from diffrl.records import Prompt
from tests.conftest import WORDS

PROMPTS = ["a red circle", "two blue squares above a green triangle"]
STEPS = 3


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


@pytest.mark.parametrize(("two", "guidance", "size"), [(False, 5.0, (64, 96)), (True, 1.0, (32, 48))])
def test_videos_equal_the_stock_pipeline_from_the_same_latents(load, two, guidance, size):
    """Of images of the size that is drawn, and of larger ones that are scaled to it: one stock call each."""
    adapter = load(two, height=32, width=48, frames=9)
    assert isinstance(adapter, EditingAdapter)
    images = [image(seed, *size) for seed in range(len(PROMPTS))]
    latents = normal(adapter, len(PROMPTS))
    conditioning = adapter.encode_edits(PROMPTS, [pixels(one) for one in images])
    options = {"num_inference_steps": STEPS, "max_sequence_length": adapter.max_sequence_length, "num_frames": 9}
    options |= {"guidance_scale": guidance, "output_type": "latent", **adapter.stock_call()}
    sees, stock = [name for name in conditioning if name in ("first_frame", "image_embeds")], []
    with torch.no_grad():
        reached = euler(adapter, latents, conditioning, guidance)
        for i, one in enumerate(images):
            given = {"image": one.resize((48, 32), Image.Resampling.LANCZOS), "prompt": PROMPTS[i], **options}
            stock.append(adapter.pipeline(**given, latents=latents[i : i + 1].clone()).frames)
        moved = [
            euler(adapter, latents, {**conditioning, name: conditioning[name].roll(1, 0)}, guidance) for name in sees
        ]
    torch.testing.assert_close(reached, torch.cat(stock), rtol=1e-4, atol=1e-5)
    assert len(sees) == 2 - two and all((reached - other).abs().mean() > 1e-3 for other in moved)
    if two:
        sigmas = adapter.sigmas(STEPS)[:-1]
        assert (sigmas >= 0.9).any() and (sigmas < 0.9).any()


def test_rows_of_two_networks_keep_their_images(random_pipelines):
    """Of networks that see the image through CLIP, too: none is published, and the stock pipeline draws with them."""
    adapter = load_adapter("wan_i2v", str(random_pipelines("wan_i2v")), dtype="float32")
    pipeline = copy.deepcopy(adapter.pipeline)
    second = copy.deepcopy(pipeline.transformer)
    for parameter in second.parameters():
        parameter.data.mul_(1.1)
    pipeline.register_modules(transformer_2=second)
    pipeline.register_to_config(boundary_ratio=0.9)
    adapter = WanImageAdapter(pipeline, torch.float32, 32, 32, 5)
    conditioning = adapter.encode_edits(["a red circle"] * 3, [pixels(image(seed, 32, 32)) for seed in range(3)])
    latents, levels = normal(adapter, 3), (0.95, 0.2, 0.9)
    with torch.no_grad():
        mixed = adapter.velocity(latents, torch.tensor(levels), conditioning, 3.0)
        for i, sigma in enumerate(levels):
            alone = adapter.velocity(latents, torch.full((3,), sigma), conditioning, 3.0)
            torch.testing.assert_close(mixed[i], alone[i], rtol=1e-4, atol=1e-5)


def test_an_encoding_belongs_to_words_and_image_and_offloaded_parts_travel_once(load, tmp_path):
    adapter = load(placement=Placement(offload=("text_encoders", "vae")))
    moves = []
    for name in ("text_encoder", "image_encoder", "vae"):
        part = getattr(adapter.pipeline, name)
        part.to = lambda device, name=name, move=part.to: moves.append((name, str(device))) or move(device)
    for seed in range(2):
        image(seed, 32, 32).save(tmp_path / f"{seed}.png")
    listed = [Prompt("a red circle", {}, str(tmp_path / f"{seed}.png")) for seed in (0, 1, 0)]
    rows = PromptEncodings(adapter)(listed)
    assert sorted(moves) == sorted([(name, "cpu") for name in ("text_encoder", "image_encoder", "vae")] * 2)
    alone = load().encode_edits(["a red circle"] * 2, [pixels(image(seed, 32, 32)) for seed in range(2)])
    assert set(rows) == set(alone) == {"prompt_embeds", "negative_prompt_embeds", "first_frame", "image_embeds"}
    for name in ("first_frame", "image_embeds"):
        assert torch.equal(rows[name][[0, 1]], alone[name]) and torch.equal(rows[name][0], rows[name][2])
        assert not torch.equal(rows[name][0], rows[name][1])


def test_what_does_not_fit_is_refused(load, random_pipelines):
    with pytest.raises(ConfigError, match="must have the ratio of sides .*, 32 x 32. An image has 48 x 32. Crop it"):
        load().encode_edits(["a red circle"], [pixels(image(0))])
    with pytest.raises(ConfigError, match="max_sequence_length must be 512 for a Wan that sees .* Got 77. Leave it"):
        load(max_sequence_length=77)
    assert load(True, max_sequence_length=77).max_sequence_length == 77
    pipeline = load().pipeline
    pipeline.register_to_config(expand_timesteps=True)
    with pytest.raises(ConfigError, match="keeps the first latent frame as it is .*Wan 2.2 TI2V.* Take Wan 2.1 I2V"):
        WanImageAdapter(pipeline, torch.float32)
    pipeline.register_to_config(expand_timesteps=False)
    for changed, said in ({"in_channels": 16}, "Got 16"), ({"pos_embed_seq_len": 514}, "takes the last frame too"):
        pipeline.transformer.register_to_config(**changed)
        with pytest.raises(ConfigError, match=said):
            WanImageAdapter(pipeline, torch.float32)
