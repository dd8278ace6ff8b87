"""Qwen-Image-Edit against the stock pipeline, and what it does unlike FLUX.1 Kontext: its words see the image too."""

import importlib
import importlib.util

import pytest
import torch
from PIL import Image

from diffrl.errors import ConfigError
from diffrl.models.adapter import EditingAdapter
from diffrl.models.encodings import PromptEncodings
from diffrl.models.families.qwen_image_edit import STOCK
from diffrl.models.loading import load_adapter
from diffrl.records import Prompt
from reward_models.media import from_pil as pixels
from tests.edits import euler, image
from tests.models.unlike import Unlike

UNLIKE = Unlike(alone=True, rounding=2**-9, waits={"to device": (2, 2, 3)})
"""One edit is drawn a call there; diffusers copies to the device which tokens are an edit's source."""

PROMPTS = ["make the circle red", "make the circle blue", "remove the square above it"]
STEPS = 5


@pytest.fixture
def load(random_pipelines):
    return lambda **options: load_adapter(
        "qwen_image_edit", str(random_pipelines("qwen_image_edit")), dtype="float32", **options
    )


@pytest.mark.parametrize(
    ("zero_cond_t", "size", "guidance"),  # True as 2511 has it, False as 2509
    [(True, (64, 128), 4.0), (False, (32, 64), 1.0)],
)
def test_editing_equals_the_stock_pipeline_from_the_same_latents(load, monkeypatch, zero_cond_t, size, guidance):
    """Of sources of the size that is drawn, and of larger ones that are scaled to it: one stock call each."""
    adapter = load(height=32, width=64)
    assert isinstance(adapter, EditingAdapter) and adapter.pipeline.transformer.zero_cond_t
    adapter.pipeline.transformer.zero_cond_t = zero_cond_t
    for block in adapter.pipeline.transformer.transformer_blocks:
        block.zero_cond_t = zero_cond_t
    sources = [image(seed, *size) for seed in range(len(PROMPTS))]
    draw = torch.Generator().manual_seed(5)
    latents = adapter.init_latents(lambda shape: torch.randn(3, *shape, generator=draw))
    conditioning = adapter.encode_edits(PROMPTS, [pixels(source) for source in sources])
    monkeypatch.setattr(importlib.import_module(STOCK), "VAE_IMAGE_SIZE", 32 * 64)  # 1024 x 1024 of the published ones
    options = {"num_inference_steps": STEPS, "height": 32, "width": 64, "true_cfg_scale": guidance}
    options |= {"negative_prompt": " "} if guidance > 1 else {}
    stock = []
    with torch.no_grad():
        reached = euler(adapter, latents, conditioning, guidance, STEPS)
        others = [
            euler(adapter, latents, conditioning | {name: conditioning[name].roll(1, 0)}, guidance, STEPS)
            for name in ("source", *(["negative_prompt_embeds"] if guidance > 1 else []))
        ]
        for i, source in enumerate(sources):
            given = {"image": source, "prompt": PROMPTS[i], "latents": latents[i : i + 1].clone()}
            stock.append(adapter.pipeline(**given, **options, output_type="latent").images)
    torch.testing.assert_close(reached, torch.cat(stock), rtol=1e-4, atol=1e-5)
    for other in others:
        assert (reached - other).abs().mean() > 1e-4, "the source must matter, to the negative prompt as well"


def test_words_are_encoded_beside_their_image_and_so_is_the_negative_prompt(load, tmp_path):
    adapter = load()
    for seed in range(2):
        image(seed, 32, 32).save(tmp_path / f"{seed}.png")
    listed = [Prompt(PROMPTS[words], {}, str(tmp_path / f"{seed}.png")) for words, seed in ((0, 0), (0, 1), (1, 0))]
    encode = PromptEncodings(adapter)
    rows = encode(listed)
    assert set(rows) == {"prompt_embeds", "mask", "negative_prompt_embeds", "negative_mask", "source"}
    own, empty = rows["prompt_embeds"], rows["negative_prompt_embeds"]
    assert not torch.equal(own[0], own[1]) and not torch.equal(own[0], own[2])
    assert torch.equal(empty[0], empty[2]) and not torch.allclose(empty[0], empty[1])
    again = encode([listed[1]])
    assert all(torch.equal(again[name][0], rows[name][1]) for name in rows)


@pytest.mark.parametrize(("height", "width", "shown"), [(1024, 1024, (384, 384)), (832, 1248, (320, 480))])
def test_the_text_encoder_sees_the_size_that_the_stock_pipeline_shows_it(load, height, width, shown):
    """Of the source's ratio there, which is that of what is drawn."""
    adapter = load(height=height, width=width)
    seen = adapter._shown(torch.zeros(3, height // 2, width // 2, dtype=torch.uint8))
    assert (seen.height, seen.width) == shown
    stock = importlib.import_module(STOCK)
    assert stock.calculate_dimensions(stock.CONDITION_IMAGE_SIZE, width / height) == shown[::-1]
    assert stock.calculate_dimensions(stock.VAE_IMAGE_SIZE, width / height) == (width, height)


def test_padding_changes_nothing_and_a_length_that_cannot_hold_the_image_is_refused(load):
    source, found = pixels(image(3, 32, 32)), []
    for length in (40, 53):
        adapter = load(max_sequence_length=length)
        rows = adapter.encode_edits(PROMPTS[:2], [source] * 2)
        assert rows["prompt_embeds"].shape[1] == rows["negative_mask"].shape[1] == length
        latents = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
        found.append(adapter.velocity(latents, torch.tensor([0.8, 0.3]), rows, 4.0))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ConfigError,
        match="max_sequence_length must hold the image and its frame, with the negative prompt 17 tokens, .* Got 12",
    ):
        load(max_sequence_length=12).encode_edits(PROMPTS[:1], [source])


def test_without_torchvision_it_says_what_is_missing(load, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torchvision" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match="needs torchvision, .* Run: pip install torchvision"):
        load()


def test_a_program_prepares_the_stock_pipeline_as_the_adapter_says(load):
    adapter, scope = load(), {}
    exec(adapter.stock_preparation(), scope)
    stock = scope["stock"]
    try:
        assert stock is importlib.import_module(STOCK) and stock.VAE_IMAGE_SIZE == 32 * 32
        assert adapter.stock_call() == {"height": 32, "width": 32}
        drawn = adapter.pipeline(
            image=Image.new("RGB", (32, 32)), prompt="make it red", num_inference_steps=2, **adapter.stock_call()
        )
        assert drawn.images[0].size == (32, 32)
    finally:
        stock.VAE_IMAGE_SIZE = 1024 * 1024
