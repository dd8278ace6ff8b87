"""FLUX.1 Kontext with images to edit, against the stock pipeline; without images it is in test_families.py."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from diffrl.models.adapter import EditingAdapter
from diffrl.models.encodings import PromptEncodings
from diffrl.models.families.flux_kontext import FAMILY
from diffrl.models.loading import load_adapter
from diffrl.records import Prompt
from reward_models.media import from_pil as pixels
from tests.edits import euler, image

PROMPTS = ["make the circle red", "make the circle blue", "remove the square above it"]
STEPS = 5


@pytest.fixture
def load(random_pipelines):
    return lambda **options: load_adapter(
        "flux_kontext", str(random_pipelines("flux_kontext")), dtype="float32", **options
    )


@pytest.mark.parametrize(("true_cfg", "size", "negative"), [(1.0, (32, 48), None), (3.0, (64, 96), "blue")])
def test_editing_equals_the_stock_pipeline_from_the_same_latents(load, true_cfg, size, negative):
    """Of sources of the size that is drawn, and of larger ones that are scaled to it: one stock call each."""
    adapter = load(height=32, width=48, true_cfg_scale=true_cfg, negative_prompt=negative)
    assert isinstance(adapter, EditingAdapter)
    sources = [image(seed, *size) for seed in range(len(PROMPTS))]
    draw = torch.Generator().manual_seed(5)
    latents = adapter.init_latents(lambda shape: torch.randn(3, *shape, generator=draw))
    conditioning = adapter.encode_edits(PROMPTS, [pixels(source) for source in sources])
    options = {"num_inference_steps": STEPS, "max_sequence_length": adapter.max_sequence_length, "guidance_scale": 3.5}
    options |= {"true_cfg_scale": true_cfg, "negative_prompt": negative or ""} if true_cfg > 1 else {}
    stock = []
    with torch.no_grad():
        reached = euler(adapter, latents, conditioning, 3.5, STEPS)
        other = euler(adapter, latents, conditioning | {"source": conditioning["source"].roll(1, 0)}, 3.5, STEPS)
        for i, source in enumerate(sources):
            scaled = source.resize((48, 32), Image.Resampling.LANCZOS)
            size = {"height": 32, "width": 48, "max_area": 32 * 48, "_auto_resize": False}
            given = {"image": scaled, "prompt": PROMPTS[i], "latents": latents[i : i + 1].clone()}
            stock.append(adapter.pipeline(**given, **size, **options, output_type="latent").images)
    torch.testing.assert_close(reached, torch.cat(stock), rtol=1e-4, atol=1e-5)
    assert (reached - other).abs().mean() > 1e-3, "the source must matter"


def test_a_loss_guides_by_its_own_scale_and_by_1_not_at_all(load):
    """By hand: u + w (c - u), of the conditional c and the unconditional u that the rollout's guidance is made of."""
    pixels_of = [pixels(image(seed, 32, 32)) for seed in range(3)]
    guided, plain = load(true_cfg_scale=3.0), load()
    latents = guided.init_latents(lambda shape: torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)))
    asked = (latents, torch.full((3,), 0.6), guided.encode_edits(PROMPTS, pixels_of))
    with torch.no_grad():
        conditional = plain.velocity(*asked[:2], plain.encode_edits(PROMPTS, pixels_of), 2.5)
        drawn = guided.velocity(*asked, 2.5)
        unconditional = (3 * conditional - drawn) / 2
        found = {scale: guided.velocity(*asked, loss_scale(scale)) for scale in (1.0, 2.0)}
    torch.testing.assert_close(found[1.0], conditional, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2.0], 2 * conditional - unconditional, rtol=1e-4, atol=1e-5)
    assert (drawn - conditional).abs().max() > 1e-3
    assert [guided.calls_per_step(scale) for scale in (2.5, loss_scale(1.0), loss_scale(2.0))] == [2, 1, 2]
    assert plain.calls_per_step(loss_scale(2.0, None)) == 1


def loss_scale(scale, true_cfg=3.0):
    """What a forward-process loss of a configuration is guided by."""
    model = SimpleNamespace(facts=replace(FAMILY, true_cfg_scale=true_cfg))
    config = Config.model_construct(model=model, rollout=SimpleNamespace(guidance_scale=2.5))
    return config.loss_guidance(scale)


def test_an_encoding_belongs_to_words_and_image(load, tmp_path):
    adapter = load()
    for seed in range(2):
        image(seed, 32, 32).save(tmp_path / f"{seed}.png")
    listed = [Prompt("make it red", {}, str(tmp_path / f"{seed}.png")) for seed in (0, 1, 0)]
    listed.append(Prompt("make it blue", {}, listed[0].source))
    encode, asked = PromptEncodings(adapter), []
    encode_edits = adapter.encode_edits
    adapter.encode_edits = lambda prompts, sources: asked.append(prompts) or encode_edits(prompts, sources)
    rows = encode(listed)
    assert len(asked) == 3 and torch.equal(rows["source"][0], rows["source"][2])
    assert torch.equal(rows["source"][0], rows["source"][3]) and not torch.equal(rows["source"][0], rows["source"][1])
    assert torch.equal(rows["pooled"][0], rows["pooled"][1]) and not torch.equal(rows["pooled"][0], rows["pooled"][3])
    for place, row in enumerate(encode([listed[1], listed[3]])["source"]):
        assert torch.equal(row, rows["source"][(1, 3)[place]])
    assert len(asked) == 3


def test_an_image_of_another_shape_is_not_distorted(load):
    with pytest.raises(ConfigError, match="must have the ratio of sides .*, 32 x 32. An image has 48 x 32. Crop it"):
        load().encode_edits(["make it red"], [pixels(image(0))])
