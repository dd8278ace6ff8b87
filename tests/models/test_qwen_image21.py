"""What Qwen-Image 2.1 does unlike the other families; parity with the stock pipeline is in test_families.py."""

from functools import partial

import pytest
import torch

from diffrl.errors import ConfigError
from diffrl.models.families.qwen_image21 import SYSTEM, TEMPLATE
from diffrl.models.loading import load_adapter
from tests.models.unlike import Unlike


def over_white(pictures):
    """As a viewer shows pictures (B, H, W, 4) in [0, 1]."""
    colours, opaque = pictures[..., :3], pictures[..., 3:]
    return colours * opaque + (1 - opaque)


UNLIKE = Unlike(alone=True, pictures=over_white, output=lambda output: output[:, -4:], rounding=2**-8, waits=None)
"""A batch's padding moves the stock call's pictures in time; the network gives what it makes of the text as well."""

PROMPTS = ["a red circle", "two blue squares above a green triangle"]


@pytest.fixture
def load(random_pipelines):
    return partial(load_adapter, "qwen_image21", str(random_pipelines("qwen_image21")), dtype="float32")


def normal(adapter):
    return adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_padding_changes_neither_velocities_nor_gradients(load, checkpointing):
    found = []
    for length in (20, 31):
        adapter = load(max_sequence_length=length)
        network = adapter.transformer.requires_grad_(True).train()
        if checkpointing:
            network.enable_gradient_checkpointing()
        velocity = adapter.velocity(normal(adapter), torch.tensor([0.8, 0.3]), adapter.encode_prompts(PROMPTS), 4.0)
        velocity.square().sum().backward()
        weights = [network.txt_in.in_layer, network.transformer_blocks[0].attn.to_k]
        found.append([velocity, *(layer.weight.grad for layer in weights)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_template_is_the_pipelines_and_its_first_line_is_cut_off(load):
    pipeline = load().pipeline
    assert pipeline.prompt_template_t2i == TEMPLATE
    assert len(pipeline.processor.tokenizer(SYSTEM).input_ids) == pipeline._drop_idx


def test_a_picture_that_is_given_comes_back_opaque(load):
    """Its encoder takes an alpha; a diffrl picture has none, and what is transparent is laid over white."""
    adapter = load()
    media = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = adapter.vae_input(media.float() / 127.5 - 1)
    assert seen.shape == (2, 4, 1, 32, 32) and (seen[:, 3] == 1).all()
    assert adapter.encode_media(media).shape == normal(adapter).shape
    rgba = torch.tensor([0.5, -0.5, 0.0, -1.0]).view(1, 4, 1, 1, 1)
    adapter.pipeline.vae.decode = lambda latents, return_dict: (rgba,)
    assert adapter.vae_output(torch.zeros(1)).flatten().tolist() == [1.0, 1.0, 1.0]


def test_levels_that_a_pipeline_brings_along_are_refused(load):
    pipeline = load().pipeline
    pipeline.register_to_config(sample_sigmas=[1.0, 0.5])
    with pytest.raises(ConfigError, match="must be a pipeline without noise levels of its own"):
        type(load())(pipeline, torch.float32)
