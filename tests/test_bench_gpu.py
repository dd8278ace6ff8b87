"""The benchmark runs on tiny pipelines, and builds full architectures the way it would on a GPU, only smaller."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
SMALLER = {
    "flux": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "joint_attention_dim": 64},
    "flux_kontext": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "joint_attention_dim": 64},
    "sd3": {"num_layers": 2, "num_attention_heads": 2, "caption_projection_dim": 128, "joint_attention_dim": 64},
    "sana": {
        "num_layers": 1, "num_attention_heads": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 64,
        "cross_attention_dim": 128, "caption_channels": 64,
    },
    "wan": {"num_layers": 1, "num_attention_heads": 1, "ffn_dim": 128, "text_dim": 64},
    "qwen_image": {"num_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 64},
    "z_image": {"n_layers": 1, "n_refiner_layers": 1, "n_heads": 1, "n_kv_heads": 1, "dim": 128, "cap_feat_dim": 64},
    "flux2_klein": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 64},
    "wan_i2v": {
        "num_layers": 1, "num_attention_heads": 1, "ffn_dim": 128, "text_dim": 64, "image_dim": 64,
        "added_kv_proj_dim": 128,
    },
    "hunyuan_video": {"num_layers": 1, "num_refiner_layers": 1, "num_attention_heads": 1, "text_embed_dim": 64},
}  # fmt: skip
VIDEOS = ("wan", "wan_i2v", "hunyuan_video")
SIZES = {family: (32, 32) if family in VIDEOS else (64, 64) for family in SMALLER}


@pytest.fixture
def bench_gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_gpu

    return bench_gpu


@pytest.fixture
def bench_models(bench_gpu):
    return sys.modules["bench_models"]


@pytest.mark.parametrize("model", ["flux", "sana"])
@pytest.mark.slow
def test_tiny_prints_a_table_and_writes_json(bench_gpu, monkeypatch, tmp_path, capsys, model):
    out = tmp_path / "bench.json"
    arguments = ["--tiny", "--models", model, "--precisions", "int8", "nvfp4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *arguments])
    bench_gpu.main()
    result = json.loads(out.read_text())
    assert result["tiny"] and result["machine"]["torch"] == torch.__version__
    rows = {(row["what"], row["precision"]): row for row in result["rows"]}
    assert len(rows) == 6 and not any("note" in row for row in rows.values())
    for key in (("explore", "float32"), ("regenerate", "float32"), ("explore", "int8"), ("explore", "nvfp4")):
        assert rows[key]["samples_per_second"] > 0 and rows[key]["tflops"] > 0 and rows[key]["decode_seconds"] > 0
    assert rows["explore", "nvfp4"]["engine"] == "emulated" != rows["explore", "int8"]["engine"]
    assert rows["explore", "int8"]["push_seconds"] > 0
    assert rows["update", "float32"]["seconds_per_edge"] > 0
    assert rows["tree against chains", "float32"]["leaves"] == 16
    shown = capsys.readouterr().out
    assert "tree against chains" in shown and "nvfp4" in shown


def test_nothing_is_started_without_time(bench_gpu, bench_models):
    adapter, case = bench_models.tiny_adapter(bench_models.CASES["flux"], ["a"])
    bench = bench_gpu.Bench(
        "flux",
        case,
        adapter,
        bench_models.random_encodings(adapter, "flux", adapter.placement.device),
        torch.device("cpu"),
    )
    adapter.transformer.register_forward_pre_hook(lambda *_: pytest.fail("something was started"))
    rows = bench_gpu.measure(bench, ["int8"], True, sys.modules["bench_machine"].Budget(0.0))
    assert [row["note"] for row in rows] == ["no time left"] * 6


def test_operations_are_counted_as_by_hand(bench_gpu, bench_models):
    """FLUX has linear layers and attention alone: 2 M K N each, and 4 T^2 d a block."""
    adapter, case = bench_models.tiny_adapter(bench_models.CASES["flux"], ["a"])
    cpu = torch.device("cpu")
    encodings = bench_models.random_encodings(adapter, "flux", cpu)
    bench = bench_gpu.Bench("flux", case, adapter, encodings, cpu)
    products = []

    def note(layer, args, output):
        products.append(2 * output.numel() * layer.in_features)

    for layer in adapter.transformer.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(note)
    bench.draw(bench_gpu.denoise, 1, {}, levels=(0, case.steps))
    config = adapter.transformer.config
    tokens = adapter.max_sequence_length + 8 * 8 // 4
    width = config.num_attention_heads * config.attention_head_dim
    attention = (config.num_layers + config.num_single_layers) * 4 * tokens**2 * width
    assert sum(products) < bench.flops == sum(products) + attention


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALLER)
def test_published_models_are_built_without_text_encoders(family, bench_gpu, bench_models, monkeypatch):
    case = bench_models.CASES[family]
    published = bench_models.PUBLISHED[case.path]
    network = published.components["transformer"]
    small = replace(network, config={**network.config, **SMALLER[family]})
    components = {**published.components, "transformer": small}
    monkeypatch.setattr(bench_models, "PUBLISHED", {case.path: replace(published, components=components)})
    height, width = SIZES[family]
    size = {"height": height, "width": width} | ({"frames": 5} if family in VIDEOS else {})
    case, cpu = replace(case, size=size, steps=5, samples=2, edges=1), torch.device("cpu")
    adapter = bench_models.full_adapter(case, cpu)
    assert adapter.transformer.dtype == torch.bfloat16 and torch.get_default_dtype() == torch.float32
    bench = bench_gpu.Bench(family, case, adapter, bench_models.random_encodings(adapter, family, cpu), cpu)
    found = bench.rate(bench_gpu.explore, sys.modules["bench_machine"].Budget(60.0))
    assert found["samples"] == 2 and found["samples_per_second"] > 0
    assert bench.update()["seconds_per_edge"] > 0


def test_peaks_are_those_of_the_card(bench_gpu):
    peak = sys.modules["bench_machine"].peak_tflops
    assert peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989 and peak("NVIDIA H100 PCIe", "fp8") == 1513
    assert peak("NVIDIA H100 80GB HBM3", "nvfp4") is None and peak("CPU (x86_64)", "bfloat16") is None
