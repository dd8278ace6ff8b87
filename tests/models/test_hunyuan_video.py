"""What HunyuanVideo 1.5 does unlike the other families; parity with the stock pipeline is in test_families.py."""

from functools import partial, reduce

import pytest
import torch
from diffusers import ClassifierFreeGuidance, PerturbedAttentionGuidance
from diffusers.loaders.lora_conversion_utils import _convert_hunyuan_video_lora_to_diffusers
from safetensors.torch import save_file

from diffrl.errors import ConfigError
from diffrl.models.architecture import component_shapes
from diffrl.models.families import FAMILIES
from diffrl.models.families.hunyuan_video import HunyuanVideoAdapter, own_size
from diffrl.models.loading import load_adapter
from diffrl.models.lora_file import attach_lora, lora_loader, read_lora
from diffrl.precision.copies import make_copy
from tests.models.unlike import Unlike

UNLIKE = Unlike(rounding=2**-9, waits={"read": (102, 102, 201)}, slow=True)
"""Tokens of no image pass the stock blocks. Masked tokens of each row are taken apart, twelve times, and it asks once
whether there is an image."""

PROMPTS = ["a red circle", 'a green triangle with "red" and "two blue" on it', "a black circle above a square"]


@pytest.fixture
def load(random_pipelines):
    return partial(load_adapter, "hunyuan_video", str(random_pipelines("hunyuan_video")), dtype="float32")


def noise(adapter, count):
    return adapter.init_latents(lambda shape: torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)))


def test_only_what_is_quoted_is_read_as_glyphs(load):
    adapter = load(max_sequence_length=31)
    found = adapter.encode_prompts(PROMPTS)
    assert found["prompt_embeds"].shape[:2] == (3, 31) and found["glyph_embeds"].shape[:2] == (3, 256)
    text = 'Text "red". Text "two blue". '  # as bytes, and the end
    assert found["glyph_mask"].sum(1).tolist() == [0, len(text) + 1, 0]
    assert not found["glyph_embeds"][[0, 2]].any() and not found["negative_glyph_mask"].any()
    other = adapter.encode_prompts([PROMPTS[1].replace("blue", "green")])
    assert not torch.equal(other["glyph_embeds"][0], found["glyph_embeds"][1])


def test_padding_and_the_image_that_is_not_there_change_nothing(load):
    """Against the network called as the stock pipeline does: all padding, and 729 masked tokens of an image."""
    adapter, sigma = load(), torch.tensor([0.9, 0.5, 0.1])
    latents, found = noise(adapter, 3), adapter.encode_prompts(PROMPTS)
    cond, mask = adapter.pipeline.prepare_cond_latents_and_mask(latents, torch.float32, "cpu")
    with torch.no_grad():
        stock = adapter.transformer(
            hidden_states=torch.cat([latents, cond, mask], 1),
            timestep=sigma * 1000,
            encoder_hidden_states=found["prompt_embeds"],
            encoder_attention_mask=found["mask"].float(),
            encoder_hidden_states_2=found["glyph_embeds"],
            encoder_attention_mask_2=found["glyph_mask"].float(),
            image_embeds=torch.zeros(3, 729, 16),
        ).sample
        torch.testing.assert_close(adapter.velocity(latents, sigma, found, 1.0), stock, rtol=1e-4, atol=1e-5)
        for i in range(3):  # the longest of a batch decides how much is cut off
            row = {name: tensor[i : i + 1] for name, tensor in found.items()}
            alone = adapter.velocity(latents[i : i + 1], sigma[i : i + 1], row, 1.0)
            torch.testing.assert_close(alone, stock[i : i + 1], rtol=1e-4, atol=1e-5)


def test_videos_are_decoded_one_by_one(load):
    """Of two at once diffusers' decoder makes an error."""
    adapter = load()
    latents = noise(adapter, 2)
    assert torch.equal(adapter.decode(latents), torch.cat([adapter.decode(row[None]) for row in latents]))


@pytest.mark.parametrize(
    ("guider", "said"),
    [
        (ClassifierFreeGuidance(guidance_rescale=0.7), 'Got a ClassifierFreeGuidance with {"guidance_rescale": 0.7'),
        (ClassifierFreeGuidance(start=0.1), '"start": 0.1'),
        (PerturbedAttentionGuidance(perturbed_guidance_layers=[0]), "Got a PerturbedAttentionGuidance. Mend"),
    ],
)
def test_another_guidance_than_the_usual_is_refused(load, guider, said):
    pipeline = load().pipeline
    pipeline.guider = guider
    with pytest.raises(ConfigError, match="guider must be a ClassifierFreeGuidance") as refused:
        HunyuanVideoAdapter(pipeline, torch.float32)
    assert said in str(refused.value)


def test_sizes_are_the_stock_calls():
    assert own_size(16, 640) == (480, 848) and own_size(16, 960) == (720, 1280)


def test_a_lora_is_added_to_its_layers(load, tmp_path):
    """Files as `diffrl export` writes them; the pipeline class has no loader of its own."""
    adapter = load()
    layer = "transformer_blocks.1.attn.to_q"
    before = adapter.transformer.get_submodule(layer).weight.clone()
    down, up = torch.randn(3, 32), torch.randn(32, 3)
    lora_loader(type(adapter.pipeline)).save_lora_weights(
        str(tmp_path),
        transformer_lora_layers={f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up},
        transformer_lora_adapter_metadata={"r": 3, "lora_alpha": 7.5, "target_modules": [layer]},
    )
    attach_lora(adapter.trainable_modules(), adapter.family, str(tmp_path), "--lora")
    adapter.transformer.fuse_lora()
    fused = adapter.transformer.get_submodule(layer).weight
    torch.testing.assert_close(fused, before + 7.5 / 3 * up @ down, rtol=1e-4, atol=1e-5)


def test_a_copy_of_another_dtype_takes_its_timestep(load):
    """The network casts none itself: a copy in bfloat16 stopped at its first layer."""
    adapter = load()
    copied = make_copy(adapter.transformer, "bfloat16", "auto", adapter.family.exclude, "cpu")
    copied.sync_weights(adapter.transformer)
    given = noise(adapter, 2), torch.tensor([0.9, 0.3]), adapter.encode_prompts(PROMPTS[:2]), 1.0
    with torch.no_grad():
        whole = adapter.velocity(*given)
        with copied.in_place_of(adapter):
            error = (adapter.velocity(*given) - whole).norm() / whole.norm()
    assert 0 < error < 0.02


ROWS = {
    "img_attn_qkv": (3, 1),
    "txt_attn_qkv": (3, 1),
    "img_attn_proj": (1, 1),
    "txt_attn_proj": (1, 1),
    "img_mlp.fc1": (2, 1),
    "img_mlp.fc2": (1, 2),
    "txt_mlp.fc1": (2, 1),
    "txt_mlp.fc2": (1, 2),
    "img_mod.linear": (6, 1),
    "txt_mod.linear": (6, 1),
}


@pytest.mark.parametrize("layout", ["diffusion_model.", "lora_unet_", "makers", "comfyui"])
def test_a_loras_layers_by_its_makers_names(random_pipelines, tmp_path, layout):
    """As diffusers converts them; queries, keys and values apart too, and ComfyUI's names of the same."""
    shapes = component_shapes(random_pipelines("hunyuan_video"))["transformer"]
    layers = {key.removesuffix(".weight"): shape for key, shape in shapes.items() if len(shape) == 2}
    width = layers["transformer_blocks.0.attn.to_q"][0]
    pairs = {
        f"double_blocks.0.{name}": (torch.randn(3, into * width), torch.randn(out * width, 3))
        for name, (out, into) in ROWS.items()
    }
    stock = {f"{n}.lora_{side}.weight": m for n, pair in pairs.items() for side, m in zip("AB", pair, strict=True)}
    theirs = _convert_hunyuan_video_lora_to_diffusers(dict(stock))
    expected = {
        key.removeprefix("transformer.").removesuffix(".lora_A.weight"): theirs[key.replace("_A.", "_B.")] @ matrix
        for key, matrix in theirs.items()
        if ".lora_A." in key
    }
    if layout == "makers":
        for name in [name for name in pairs if name.endswith("_qkv")]:
            a, b = pairs.pop(name)
            pairs |= {
                name.replace("_qkv", f"_{kind}"): (a.clone(), part)
                for kind, part in zip("qkv", b.chunk(3), strict=True)
            }
    if layout == "comfyui":
        names = {"_attn_": "_attn.", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2", "mod.linear": "mod.lin"}
        pairs = {reduce(lambda text, pair: text.replace(*pair), names.items(), name): m for name, m in pairs.items()}
    prefix = layout if layout.endswith(("_", ".")) else ""
    spelled = {
        prefix + (name.replace(".", "_") if prefix == "lora_unet_" else name): pair for name, pair in pairs.items()
    }
    tensors = {
        f"{n}.lora_{s}.weight": m.contiguous() for n, pair in spelled.items() for s, m in zip("AB", pair, strict=True)
    }
    save_file(tensors, tmp_path / "lora.safetensors")
    found = read_lora(tmp_path / "lora.safetensors", layers, FAMILIES["hunyuan_video"])
    changed = {name: found.alpha[name] / len(a) * found.up[name] @ a for name, a in found.down.items()}
    assert changed.keys() == expected.keys()
    for name, change in changed.items():
        torch.testing.assert_close(change, expected[name])
