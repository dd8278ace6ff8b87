"""What is planned of latents, encodings and activations, against the adapters themselves on tiny pipelines."""

import warnings
from contextlib import contextmanager

import pytest
import torch

from diffrl.models.architecture import describe_pipeline
from diffrl.models.families import FAMILIES, hunyuan_video
from diffrl.models.geometry import Size, read_geometry
from diffrl.models.loading import load_adapter
from diffrl.models.lora import add_lora
from diffrl.models.shipped import shipped_settings
from diffrl.models.targets import names_layer
from tests.edits import LONG, encoded
from tests.tiers import daily

OLDER = {"sd3": (16, 32, None), "flux": (48, 32, None), "sana": (48, 32, None), "wan": (48, 32, 9)}
SIZES = {**OLDER, "qwen_image": (48, 32, None), "z_image": (48, 32, None), "flux2_klein": (48, 32, None)}
SIZES |= {"flux_kontext": (48, 32, None), "qwen_image_edit": (48, 32, None), "wan_i2v": (48, 32, 9)}
SIZES |= {"hunyuan_video": (48, 32, 9)}
SHARED = ("flux_kontext",)
"""Families whose network is another's."""


@contextmanager
def bfloat16():
    """Inside, tensors that are made without a dtype are bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def network_of(family, layers, width):
    """A network of a family at a width at which blocks outweigh the rest, and a call of it on B = 1."""
    import diffusers

    if family == "sd3":
        network = diffusers.SD3Transformer2DModel(
            sample_size=32, num_layers=layers, attention_head_dim=64, num_attention_heads=width // 64,
            joint_attention_dim=96, caption_projection_dim=width, pooled_projection_dim=64, pos_embed_max_size=32,
            qk_norm="rms_norm",
        )  # fmt: skip
        return (
            network,
            256 + 77,
            lambda n: n(torch.randn(1, 16, 32, 32), torch.randn(1, 77, 96), torch.randn(1, 64), torch.tensor([500.0])),
        )
    if family == "flux":
        network = diffusers.FluxTransformer2DModel(
            num_layers=layers, num_single_layers=2 * layers, attention_head_dim=64, num_attention_heads=width // 64,
            joint_attention_dim=96, pooled_projection_dim=64, axes_dims_rope=(16, 24, 24), guidance_embeds=True,
        )  # fmt: skip
        return network, 256 + 77, lambda n: n(
            torch.randn(1, 256, 64), torch.randn(1, 77, 96), torch.randn(1, 64), torch.tensor([0.5]),
            torch.zeros(256, 3), torch.zeros(77, 3), torch.tensor([3.5]),
        )  # fmt: skip
    if family == "sana":
        network = diffusers.SanaTransformer2DModel(
            num_layers=layers, num_attention_heads=width // 32, attention_head_dim=32, cross_attention_head_dim=32,
            num_cross_attention_heads=width // 32, cross_attention_dim=width, caption_channels=96, sample_size=16,
        )  # fmt: skip
        return network, 256, lambda n: n(torch.randn(1, 32, 16, 16), torch.randn(1, 40, 96), torch.tensor([500.0]))
    if family == "z_image":
        network = diffusers.ZImageTransformer2DModel(
            dim=width, n_layers=layers, n_refiner_layers=0, n_heads=width // 64, n_kv_heads=width // 64,
            cap_feat_dim=96, axes_dims=[16, 24, 24], axes_lens=[256, 64, 64],
        )  # fmt: skip
        return network, 256 + 96, lambda n: n([torch.randn(16, 1, 32, 32)], torch.tensor([0.5]), [torch.randn(77, 96)])
    if family in ("qwen_image", "qwen_image_edit"):
        edits = family == "qwen_image_edit"
        network = diffusers.QwenImageTransformer2DModel(
            num_layers=layers, attention_head_dim=64, num_attention_heads=width // 64, joint_attention_dim=96,
            axes_dims_rope=(16, 24, 24), zero_cond_t=edits,
        )  # fmt: skip
        return network, 256 + 77, lambda n: n(
            hidden_states=torch.randn(1, 256, 64), timestep=torch.tensor([0.5]),
            img_shapes=[[(1, 8, 16)] * 2 if edits else [(1, 16, 16)]],
            encoder_hidden_states=torch.randn(1, 77, 96), encoder_hidden_states_mask=torch.ones(1, 77).bool(),
        )  # fmt: skip
    if family == "hunyuan_video":
        network = diffusers.HunyuanVideo15Transformer3DModel(
            num_layers=layers, attention_head_dim=64, num_attention_heads=width // 64, text_embed_dim=96,
            text_embed_2_dim=96, image_embed_dim=64, rope_axes_dim=(16, 24, 24), num_refiner_layers=1,
        )  # fmt: skip
        return network, 256 + 77 + 23, lambda n: n(
            torch.randn(1, 65, 1, 16, 16), torch.tensor([500.0]), torch.randn(1, 77, 96), torch.ones(1, 77).bool(),
            None, torch.randn(1, 23, 96).bfloat16(), torch.ones(1, 23).bool(), torch.zeros(1, 0, 64).bfloat16(),
        )  # fmt: skip
    if family == "flux2_klein":
        network = diffusers.Flux2Transformer2DModel(
            num_layers=layers, num_single_layers=4 * layers, attention_head_dim=64, num_attention_heads=width // 64,
            joint_attention_dim=96, axes_dims_rope=(16, 16, 16, 16), guidance_embeds=False,
        )  # fmt: skip
        return network, 256 + 77, lambda n: n(
            torch.randn(1, 256, 128), torch.randn(1, 77, 96), torch.tensor([0.5]), torch.zeros(256, 4),
            torch.zeros(77, 4),
        )  # fmt: skip
    sizes = {"num_attention_heads": width // 64, "attention_head_dim": 64, "text_dim": 96, "ffn_dim": width * 35 // 6}
    if family == "wan_i2v":
        sizes |= {"in_channels": 36, "image_dim": 80, "added_kv_proj_dim": width, "ffn_dim": width * 27 // 10}
        network = diffusers.WanTransformer3DModel(num_layers=layers, **sizes)
        return network, 4096, lambda n: n(
            torch.randn(1, 36, 8, 64, 32), torch.tensor([500]), torch.randn(1, 512, 96), torch.randn(1, 257, 80)
        )  # fmt: skip
    network = diffusers.WanTransformer3DModel(num_layers=layers, **sizes)
    return network, 256, lambda n: n(torch.randn(1, 16, 2, 32, 16), torch.tensor([500]), torch.randn(1, 40, 96))


def bytes_saved(family, layers, width):
    """What autograd keeps of a forward pass with LoRA in bfloat16, weights left out; and the tokens."""
    with bfloat16():
        network, tokens, call = network_of(family, layers, width)
    layers = [name for name, _ in network.named_modules()]
    targets = [one for one in FAMILIES[family].lora_targets if any(names_layer(one, name) for name in layers)]
    add_lora(network.requires_grad_(False), 4, 4, targets, 0)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), bfloat16():
        call(network)
    return sum(storage.nbytes() for storage in kept.values()), tokens


@pytest.mark.parametrize("family", daily([family for family in SIZES if family not in SHARED], OLDER))
def test_activations_are_what_autograd_keeps(family, random_pipelines):
    """Of one more block, in multiples of tokens x width; within a quarter of the family's number."""
    width = 256
    architecture = describe_pipeline(str(random_pipelines(family)))
    planned = read_geometry(FAMILIES[family], architecture, Size()).activations.saved
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (less, tokens), (more, _) = bytes_saved(family, 1, width), bytes_saved(family, 2, width)
    if family == "hunyuan_video":  # which keeps masks of all pairs of tokens, too
        planned = hunyuan_video.activations(tokens, width).saved
    blocks = {"flux": 3, "flux2_klein": 5}.get(family, 1)  # a double block and two or four single ones
    assert (more - less) / 2 / blocks / tokens / width == pytest.approx(planned, rel=0.25)


@pytest.mark.parametrize("family", SIZES)
def test_sizes_are_the_adapters(family, random_pipelines):
    height, width, frames = SIZES[family]
    path = random_pipelines(family)
    options = {"height": height, "width": width, "frames": frames}
    given = {name: value for name, value in options.items() if value is not None}
    adapter = load_adapter(family, str(path), dtype="float32", **given)
    text = shipped_settings(path)["max_sequence_length"]
    geometry = read_geometry(FAMILIES[family], describe_pipeline(str(path)), Size(height, width, frames, text))
    latents = adapter.init_latents(lambda shape: torch.zeros(1, *shape))
    pictures = adapter.decode(latents)
    assert geometry.latent_elements == latents.numel()
    assert geometry.pixels * 3 == pictures.numel()
    conditioning = encoded(adapter, [LONG])
    assert geometry.source_tokens == (conditioning["source"].shape[1] if "source" in conditioning else 0)
    assert geometry.encoding_elements == sum(tensor.numel() for tensor in conditioning.values())
    tokens = []
    for block in getattr(
        adapter.transformer,
        {"wan": "blocks", "wan_i2v": "blocks", "z_image": "layers"}.get(family, "transformer_blocks"),
    ):
        block.register_forward_hook(lambda _, __, output: tokens.append(output))
    with torch.no_grad():
        adapter.velocity(latents, torch.tensor([0.5]), conditioning, 1.0)
    found = tokens[0] if isinstance(tokens[0], tuple) else (tokens[0],)
    assert geometry.tokens * geometry.width == sum(t.numel() for t in found if t is not None and t.ndim == 3)
    config = adapter.transformer.config
    counted = ("num_layers", "num_single_layers", "n_layers", "n_refiner_layers")
    assert geometry.layers == sum(config.get(name, 0) for name in counted)


def test_an_unknown_family_or_config_has_no_geometry(random_pipelines):
    sd3 = describe_pipeline(str(random_pipelines("sd3")))
    assert read_geometry(FAMILIES["qwen_image"], sd3, Size()) is None
    assert read_geometry(FAMILIES["wan"], sd3, Size()) is None
