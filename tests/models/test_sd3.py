"""What SD3 does unlike the other families; parity with one token and rows of a batch are in test_families.py."""

import pytest
import torch

from diffrl.functional.dynamics import ode_step
from diffrl.models.loading import load_adapter

PROMPTS = ["a red circle", "two blue squares", "a green triangle above a black circle"]


@pytest.fixture(scope="module")
def adapter(random_sd3):
    return load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))


def euler(adapter, latents, prompts, steps, guidance_scale):
    conditioning = adapter.encode_prompts(prompts)
    sigmas = adapter.sigmas(steps)
    for s, n in zip(sigmas, sigmas[1:], strict=False):
        v = adapter.velocity(latents, s.expand(len(latents)), conditioning, guidance_scale)
        latents = ode_step(latents, v, s, n).mean
    return latents


@pytest.mark.parametrize(("guidance_scale", "tokens"), [(1.0, 7), (4.5, 256)])
def test_ode_equals_the_stock_pipeline_from_the_same_latents(adapter, guidance_scale, tokens):
    adapter.max_sequence_length = tokens
    latents = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    options = {"num_inference_steps": 7, "guidance_scale": guidance_scale, "max_sequence_length": tokens}
    stock = adapter.pipeline(PROMPTS, latents=latents.clone(), output_type="latent", **options).images
    ours = euler(adapter, latents, PROMPTS, 7, guidance_scale)
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
    assert (stock - latents).abs().mean() > 0.1


def test_pictures_equal_the_stock_pipelines_bit_for_bit(adapter):
    latents = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(6))
    stock = adapter.pipeline.vae.decode(latents / adapter.pipeline.vae.config.scaling_factor).sample
    expected = adapter.pipeline.image_processor.postprocess(stock.detach(), output_type="np")
    ours = adapter.decode(latents).permute(0, 2, 3, 1).numpy()
    assert ours.dtype == "uint8"
    assert (ours == (expected * 255).round().astype("uint8")).all()


def test_a_shifted_schedule_is_the_schedulers_own(adapter, random_sd3):
    from diffusers import FlowMatchEulerDiscreteScheduler

    other = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    other.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    sigmas = other.sigmas(11)
    assert sigmas.shape == (12,) and sigmas[0] == 1.0 and sigmas[-1] == 0.0
    assert (sigmas[1:] < sigmas[:-1]).all() and sigmas[5] > adapter.sigmas(11)[5] + 0.1


def test_the_shipped_setting_is_used_unless_the_configuration_says_otherwise(random_sd3):
    def length(**options):
        return load_adapter(
            "sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"), **options
        ).max_sequence_length

    assert length() == length(max_sequence_length=None) == 1
    assert length(max_sequence_length=9) == 9
