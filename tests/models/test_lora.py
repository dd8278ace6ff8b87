"""LoRA starts as the base model, trains only itself, and can be switched off."""

import pytest
import torch

from diffrl.config.model import LoraSettings, ModelSettings
from diffrl.errors import ConfigError
from diffrl.models.loading import load_adapter
from diffrl.models.lora import add_lora, lora_disabled, lora_layers

RANK, ALPHA, TARGETS = 3, 7.0, ("to_q", "to_out.0", "add_k_proj")


@pytest.fixture
def adapter(random_sd3):
    return load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))


def velocity(adapter):
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    conditioning = adapter.encode_prompts(["a red circle", "two blue squares"])
    with torch.no_grad():
        return adapter.velocity(latents, torch.tensor([0.8, 0.3]), conditioning, 1.0)


def randomise(transformer):
    generator = torch.Generator().manual_seed(5)
    for parameter in (p for p in transformer.parameters() if p.requires_grad):
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)


def test_it_starts_as_the_base_model_and_trains_only_itself(adapter):
    base = velocity(adapter)
    add_lora(adapter.transformer, RANK, ALPHA, TARGETS, seed=1)
    assert torch.equal(velocity(adapter), base)
    trained = {name: p for name, p in adapter.transformer.named_parameters() if p.requires_grad}
    assert len(trained) == 3 * 2 * 2 and all("lora_" in name for name in trained)
    assert {tuple(p.shape) for p in trained.values()} == {(RANK, 128), (128, RANK)}
    assert all(p.abs().sum() > 0 for name, p in trained.items() if "lora_A" in name)


def test_the_update_is_b_a_times_alpha_over_rank(adapter):
    layer = adapter.transformer.transformer_blocks[1].attn.to_q
    weight, bias = layer.weight.clone(), layer.bias.clone()
    add_lora(adapter.transformer, RANK, ALPHA, TARGETS, seed=1)
    randomise(adapter.transformer)
    layer = adapter.transformer.transformer_blocks[1].attn.to_q
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    x = torch.randn(5, 128)
    expected = x @ weight.T + bias + (x @ a.T @ b.T) * (ALPHA / RANK)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_the_seed_alone_decides_the_start(random_sd3):
    def start(seed):
        torch.manual_seed(99 + seed)
        adapter = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
        state = torch.get_rng_state()
        add_lora(adapter.transformer, RANK, ALPHA, TARGETS, seed % 2)
        assert torch.equal(torch.get_rng_state(), state)
        return lora_layers(adapter.transformer)

    one, same, other = start(0), start(2), start(1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_switched_off_it_is_the_base_model_and_comes_back(adapter):
    base = velocity(adapter)
    add_lora(adapter.transformer, RANK, ALPHA, TARGETS, seed=1)
    randomise(adapter.transformer)
    changed = velocity(adapter)
    assert (changed - base).abs().max() > 1e-3
    with lora_disabled(adapter.transformer):
        assert torch.equal(velocity(adapter), base)
    assert torch.equal(velocity(adapter), changed)
    with pytest.raises(KeyError), lora_disabled(adapter.transformer):
        raise KeyError
    assert torch.equal(velocity(adapter), changed)
    assert sum(p.requires_grad for p in adapter.transformer.parameters()) == 3 * 2 * 2


@pytest.mark.parametrize("wrong", ["to_x", "q", "attn", "norm_out"])
def test_a_target_that_matches_nothing_is_named(adapter, wrong):
    with pytest.raises(ConfigError, match=rf"model.lora.targets must name linear layers .* Got {wrong}, .*attn.to_q"):
        add_lora(adapter.transformer, RANK, ALPHA, ["to_q", wrong], seed=1)
    assert not any("lora_" in name for name, _ in adapter.transformer.named_parameters())


def test_rslora_is_scaled_as_peft_scales_it():
    from peft import LoraConfig, get_peft_model

    settings = LoraSettings(rank=9, alpha=7.0, use_rslora=True)
    config = LoraConfig(r=9, lora_alpha=7.0, use_rslora=True, target_modules=["0"])
    layer = get_peft_model(torch.nn.Sequential(torch.nn.Linear(12, 12)), config).base_model.model[0]
    assert settings.plain_alpha / settings.rank == pytest.approx(layer.scaling["default"])
    model = ModelSettings(family="sd3", path="somewhere", lora=settings)
    assert model.adapters["alpha"] == settings.plain_alpha == 21.0
    assert LoraSettings(rank=9, alpha=7.0).plain_alpha == 7.0
