"""What Qwen-Image does unlike the other families; parity with the stock pipeline is in test_families.py."""

from functools import partial

import pytest
import torch

from diffrl.models.loading import load_adapter
from tests.models.unlike import Unlike

UNLIKE = Unlike(rounding=2**-9)
"""Padding is masked in another place there."""

PROMPTS = ["a red circle", "two blue squares above a green triangle"]


@pytest.fixture
def load(random_pipelines):
    return partial(load_adapter, "qwen_image", str(random_pipelines("qwen_image")), dtype="float32")


def test_padding_changes_nothing(load):
    short, long = load(max_sequence_length=20), load(max_sequence_length=31)
    latents = short.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    sigma = torch.tensor([0.8, 0.3])
    found = []
    for adapter, length in ((short, 20), (long, 31)):
        conditioning = adapter.encode_prompts(PROMPTS)
        assert all(tensor.shape[:2] == (2, length) for tensor in conditioning.values())
        found.append(adapter.velocity(latents, sigma, conditioning, 4.0))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_guidance_turns_each_token_and_keeps_its_length(load):
    adapter = load()
    latents = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    conditioning, sigma = adapter.encode_prompts(PROMPTS), torch.tensor([0.8, 0.3])
    with torch.no_grad():
        plain, guided = (adapter.velocity(latents, sigma, conditioning, scale).double() for scale in (1.0, 4.0))
    torch.testing.assert_close(guided.pow(2).sum(-1), plain.pow(2).sum(-1), rtol=1e-4, atol=0)
    cosine = torch.nn.functional.cosine_similarity(guided, plain, dim=-1)
    assert cosine.min() < 0.999


def test_a_single_step_goes_from_noise_to_the_picture(load):
    """The stock scheduler stretches the levels so that the last is .02, and of one makes nan."""
    assert load().sigmas(1).tolist() == [1.0, 0.0]
    assert load().sigmas(2)[1].item() == pytest.approx(0.02, abs=1e-6)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_masks_that_go_to_attention_straight_are_the_networks_own(load, checkpointing):
    adapter = load()
    network = adapter.transformer.requires_grad_(True)
    if checkpointing:
        network.enable_gradient_checkpointing()
    latents = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    conditioning, sigma = adapter.encode_prompts(PROMPTS), torch.tensor([0.8, 0.3])
    rows, columns = adapter.latent_shape[1:]
    texts, masks = conditioning["prompt_embeds"], conditioning["mask"]
    found = []
    for call in (
        lambda: adapter.predict(latents, sigma, conditioning, 1.0),
        lambda: network(latents, texts, masks, sigma, [[(1, rows // 2, columns // 2)]] * 2, return_dict=False)[0],
        lambda: network(latents, texts, None, sigma, [[(1, rows // 2, columns // 2)]] * 2, return_dict=False)[0],
    ):
        network.zero_grad()
        velocity = call()
        velocity.square().sum().backward()
        found.append((velocity.detach(), network.txt_in.weight.grad.clone()))
    for ours, stock, unmasked in zip(*found, strict=True):
        assert torch.equal(ours, stock) and not torch.allclose(ours, unmasked, rtol=1e-3)
