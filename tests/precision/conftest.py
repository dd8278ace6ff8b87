"""A tiny SD3 adapter, its velocity on fixed inputs, and ways to change its weights."""

import copy
from functools import cache

import pytest
import torch
from torch import nn

from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.precision.copies import make_copy

PROMPTS = ("a red circle", "two blue squares", "three green triangles")


@pytest.fixture(scope="session")
def loaded(random_sd3):
    """dtype -> adapter with the first block and the last, which has no text half; to be read only.

    With larger gates than fresh weights have: there the blocks, and so the quantised layers, hardly matter.
    """

    @cache
    def load(dtype):
        made = load_adapter("sd3", str(random_sd3), dtype=dtype, device=torch.device("cpu"))
        blocks = made.transformer.transformer_blocks
        made.transformer.transformer_blocks = nn.ModuleList([blocks[0], blocks[-1]])
        for block in made.transformer.transformer_blocks:
            block.norm1.linear.weight.data *= 4
            block.norm1_context.linear.weight.data *= 4
        return made

    return load


@pytest.fixture
def adapter(loaded):
    """The adapter in float32 with a transformer of its own."""
    made = copy.copy(loaded("float32"))
    made.transformer = copy.deepcopy(made.transformer)
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


@pytest.fixture(scope="session")
def sd3_copy():
    """(transformer, precision, engine) -> copy with the default exclusions, on the CPU."""
    return lambda transformer, precision, engine: make_copy(
        transformer, precision, engine, FAMILIES["sd3"].exclude, "cpu"
    )


@pytest.fixture(scope="session")
def read_copy(loaded, sd3_copy):
    """(precision, engine) -> copy of the adapter as it was loaded; to be read only."""
    return cache(lambda precision, engine: sd3_copy(loaded("float32").transformer, precision, engine))
