"""What Krea 2 does unlike the other families; parity with the stock pipeline is in test_families.py."""

import json
from functools import partial

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from diffrl.errors import ConfigError
from diffrl.models.distilled import refuse_distilled
from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.tiny import build_pipeline, save_pipeline
from tests.conftest import WORDS

PROMPTS = ["a red circle", "two blue squares above a green triangle"]


@pytest.fixture
def load(random_pipelines):
    return partial(load_adapter, "krea2", str(random_pipelines("krea2")), dtype="float32")


def test_padding_changes_nothing_and_each_token_is_the_states_of_three_layers(load):
    short, long = load(max_sequence_length=20), load(max_sequence_length=31)
    latents = short.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    found = []
    for adapter, length in ((short, 20), (long, 31)):
        conditioning = adapter.encode_prompts(PROMPTS)
        assert conditioning["prompt_embeds"].shape == (2, length, 3, 32)
        assert {name: tuple(conditioning[name].shape[1:]) for name in ("prompt_embeds", "mask")} == adapter.text_shapes(
            {}
        )
        found.append(adapter.velocity(latents, torch.tensor([0.8, 0.3]), conditioning, 4.0))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_few_step_checkpoint_has_one_shift_for_all_sizes_and_is_refused(tmp_path, load):
    folder = tmp_path / "krea"
    save_pipeline(build_pipeline("krea2", WORDS.split(), 0), folder)
    index = folder / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "is_distilled": True}))
    with pytest.raises(ConfigError, match="model_index.json has is_distilled: true"):
        refuse_distilled(FAMILIES["krea2"], str(folder), allowed=False)
    stock = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    stock.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25], mu=1.15)
    for side in (32, 64):
        distilled = load_adapter("krea2", str(folder), dtype="float32", height=side)
        torch.testing.assert_close(distilled.sigmas(4), stock.sigmas, rtol=1e-6, atol=0)
        assert not torch.allclose(load(height=side).sigmas(4), stock.sigmas, rtol=1e-3)


def test_the_default_lora_leaves_no_attention_of_the_blocks_out(load):
    targets = FAMILIES["krea2"].lora_targets
    blocks = load().transformer.transformer_blocks
    attention = [name for name, layer in blocks[0].attn.named_modules() if isinstance(layer, torch.nn.Linear)]
    assert {f"attn.{name}" for name in attention} == set(targets)
