"""Speed is measured on tiny pipelines here, and full architectures are built as on a GPU, only smaller."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from diffrl.cost.gpus import rates_of
from diffrl.doctor import models, speed
from diffrl.doctor.rows import Budget, answer

CPU = torch.device("cpu")
SMALLER = {
    "flux": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "joint_attention_dim": 64},
    "sd3": {"num_layers": 2, "num_attention_heads": 2, "caption_projection_dim": 128, "joint_attention_dim": 64},
    "sana": {
        "num_layers": 1, "num_attention_heads": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 64,
        "cross_attention_dim": 128, "caption_channels": 64,
    },
    "wan": {"num_layers": 1, "num_attention_heads": 1, "ffn_dim": 128, "text_dim": 64},
}  # fmt: skip


@pytest.mark.slow
def test_every_measurement_of_a_tiny_model_gives_numbers():
    budget = Budget(600)
    found = {row.name: answer("speed", row, budget) for row in speed.rows(CPU, budget)}
    assert {outcome.status for name, outcome in found.items() if "fp4" not in name and "mx" not in name} == {"pass"}
    assert {found[f"flux: explore, {name}"].status for name in ("mxfp8", "nvfp4")} == {"not here"}
    for what in ("explore, float32", "regenerate, float32", "explore, int8"):
        facts = found[f"flux: {what}"].facts
        assert facts["samples_per_second"] > 0 and facts["tflops"] > 0 and facts["decode_seconds"] > 0
    assert found["flux: explore, int8"].facts["push_seconds"] > 0
    assert found["flux: update, float32"].facts["seconds_per_edge"] > 0
    assert found["flux: tree against chains"].facts["leaves"] == 16


@pytest.mark.long
def test_nothing_is_started_without_time(monkeypatch):
    monkeypatch.setattr(speed.Bench, "rate", lambda *_: pytest.fail("something was started"))
    budget = Budget(0.0)
    found = [answer("speed", row, budget) for row in speed.rows(CPU, budget)]
    assert {outcome.status for outcome in found} == {"not here"} and "--minutes" in found[0].measured


def test_operations_are_counted_as_by_hand():
    """FLUX has linear layers and attention alone: 2 M K N each, and 4 T^2 d a block."""
    adapter, case = models.tiny_adapter(models.CASES["flux"], ["a"])
    encodings = models.random_encodings(adapter, CPU)
    bench = speed.Bench("flux", case, adapter, encodings, CPU)
    products = []

    def note(layer, args, output):
        products.append(2 * output.numel() * layer.in_features)

    for layer in adapter.transformer.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(note)
    bench.draw(speed.denoise, 1, {}, levels=(0, case.steps))
    config = adapter.transformer.config
    tokens = adapter.max_sequence_length + 8 * 8 // 4
    width = config.num_attention_heads * config.attention_head_dim
    attention = (config.num_layers + config.num_single_layers) * 4 * tokens**2 * width
    assert sum(products) < bench.flops == sum(products) + attention


@pytest.mark.slow
@pytest.mark.parametrize("family", models.CASES)
def test_published_models_are_built_without_text_encoders(family):
    case = models.CASES[family]
    size = {"height": 32, "width": 32, "frames": 5} if "frames" in case.size else {"height": 64, "width": 64}
    case = replace(case, size=size, steps=5, samples=2, edges=1)
    adapter = models.full_adapter(case, CPU, **SMALLER[family])
    assert adapter.transformer.dtype == torch.bfloat16 and torch.get_default_dtype() == torch.float32
    bench = speed.Bench(family, case, adapter, models.random_encodings(adapter, CPU), CPU)
    found = bench.rate(speed.explore, Budget(60.0), "bfloat16")
    assert found["samples"] == 2 and found["samples_per_second"] > 0
    assert bench.update()["seconds_per_edge"] > 0


def test_peaks_are_those_of_the_card():
    assert rates_of("NVIDIA H100 80GB HBM3")["bfloat16"] == 989.4 and rates_of("NVIDIA H100 PCIe")["fp8"] == 1513
    assert "nvfp4" not in rates_of("NVIDIA H100 80GB HBM3") and not rates_of("CPU (x86_64)")
