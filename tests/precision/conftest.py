"""A tiny SD3 adapter, its velocity on fixed inputs, and ways to change its weights."""

import pytest
import torch

from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.precision.copies import make_copy

PROMPTS = ("a red circle", "two blue squares", "three green triangles")


@pytest.fixture
def adapter(random_sd3):
    """With larger gates than fresh weights have: there the blocks, and so the quantised layers, hardly matter."""
    made = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    for block in made.transformer.transformer_blocks:
        block.norm1.linear.weight.data *= 4
        block.norm1_context.linear.weight.data *= 4
    return made


@pytest.fixture
def velocity():
    """(adapter, rows of the batch of 3) -> velocities, conditional only."""
    latents = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    sigma = torch.tensor([0.9001, 0.7, 0.3])

    def evaluate(adapter, rows=slice(None)):
        conditioning = adapter.encode_prompts(PROMPTS[rows])
        with torch.no_grad():
            return adapter.velocity(latents[rows], sigma[rows], conditioning, 1.0)

    return evaluate


@pytest.fixture
def sd3_copy():
    """(transformer, precision, engine) -> copy with the default exclusions, on the CPU."""
    return lambda transformer, precision, engine: make_copy(
        transformer, precision, engine, FAMILIES["sd3"].exclude, "cpu"
    )
