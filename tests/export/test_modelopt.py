"""Quantised exports: what is packed is the merged, aligned model; what is restored is what was exported."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.export.modelopt import STATE_FILE, export_quantised
from diffrl.models.families import FAMILIES
from diffrl.precision.layers import matches
from diffrl.precision.weights import merged_copy
from diffrl.run.checkpoints import load_aligned
from tests.training.harness import settings, start

CPU = torch.device("cpu")
needs_modelopt = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None, reason="nvidia-modelopt is not installed"
)
LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture(scope="module")
def run(random_sd3, tmp_path_factory):
    """A run of one iteration, which no test changes."""
    lora = {"rank": 3, "alpha": 7.0, "targets": ["to_q", "ff.net.2"]}
    changes = {"model": {"lora": lora}, "train": {"learning_rate": 3.0e-3}, "run": {"iterations": 1}}
    return start(settings(random_sd3, tmp_path_factory.mktemp("run"), **changes))[0]


def inputs(transformer):
    generator = torch.Generator().manual_seed(3)
    config = transformer.config
    return {
        "hidden_states": torch.randn(2, 4, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(2, 5, config.joint_attention_dim, generator=generator),
        "pooled_projections": torch.randn(2, config.pooled_projection_dim, generator=generator),
        "timestep": torch.tensor([500.0, 20.0]),
        "return_dict": False,
    }


@needs_modelopt
@pytest.mark.long
def test_fp8_round_trip(run, tmp_path):
    """Restored into a fresh network by modelopt, against the packed checkpoint read by hand."""
    import modelopt.torch.opt as mto

    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        main(["export", str(run), "--out", str(out), "--format", "modelopt-fp8"])
    assert not end.value.code
    plain = merged_copy(load_aligned(run, CPU).policy.inner, torch.float32, CPU)
    restored = mto.restore(type(plain).from_config(plain.config), out / STATE_FILE).eval()
    packed = load_file(out / "transformer" / "diffusion_pytorch_model.safetensors")
    layers = json.loads((out / "quantisation.json").read_text())
    for name in layers["quantised"]:
        codes, scale = packed[f"{name}.weight"], packed[f"{name}.weight_scale"]
        assert codes.dtype == torch.float8_e4m3fn
        weight = plain.get_submodule(name).weight
        assert scale == pytest.approx(float(weight.abs().max()) / 448, rel=1e-6)
        layer = restored.get_submodule(name)
        torch.testing.assert_close(codes.float() * scale, layer.weight_quantizer(layer.weight), rtol=1e-6, atol=0)
        torch.testing.assert_close(layer.weight, weight)
        assert packed[f"{name}.input_scale"] == pytest.approx(float(layer.input_quantizer.amax) / 448, rel=1e-6)
    x = inputs(plain)
    with torch.no_grad():
        exact, theirs = plain(**x)[0], restored(**x)[0]
        ours = by_hand(plain, packed, layers["quantised"])(**x)[0]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    assert 1e-5 < float((theirs - exact).norm() / exact.norm()) < 0.05


def by_hand(plain, packed, names):
    """The network with E4M3 weights and inputs, from the packed tensors alone."""

    def rounded(x, scale):
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    for name in names:
        layer, scale = plain.get_submodule(name), packed[f"{name}.input_scale"]
        layer.weight.data = packed[f"{name}.weight"].float() * packed[f"{name}.weight_scale"]
        layer.register_forward_pre_hook(lambda _, args, scale=scale: (rounded(args[0], scale),))
    return plain


@needs_modelopt
@pytest.mark.long
def test_nvfp4_is_packed_without_a_gpu(run, tmp_path):
    out = tmp_path / "out"
    lines = export_quantised(run, out, "modelopt-nvfp4", prompts=5)
    assert "calibrated on 5 prompts" in lines[-1]
    plain = merged_copy(load_aligned(run, CPU).policy.inner, torch.float32, CPU)
    packed = load_file(out / "transformer" / "diffusion_pytorch_model.safetensors")
    layers = json.loads((out / "quantisation.json").read_text())
    exclude = FAMILIES["sd3"].exclude
    assert layers["quantised"] and not any(matches(e, name) for e in exclude for name in layers["quantised"])
    assert all(why.startswith("excluded by") for why in layers["kept"].values())
    low = {name.removesuffix(".weight") for name, tensor in packed.items() if tensor.dtype == torch.uint8}
    assert low == set(layers["quantised"]) and not any("lora" in name for name in packed)
    assert (out / "vae" / "config.json").is_file() and (out / "model_index.json").is_file()
    assert len(layers["calibrated_on"]) == 5
    for name in layers["quantised"]:
        codes, scales = packed[f"{name}.weight"], packed[f"{name}.weight_scale"]
        assert (codes.dtype, scales.dtype) == (torch.uint8, torch.float8_e4m3fn)
        nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()
        values = LEVELS[nibbles & 7] * (1 - 2 * (nibbles >> 3))
        held = values * (scales.float() * packed[f"{name}.weight_scale_2"]).repeat_interleave(16, dim=-1)
        weight = plain.get_submodule(name).weight
        assert 0.05 < float((held - weight).norm() / weight.norm()) < 0.12
        assert 0 < float(packed[f"{name}.input_scale"]) < 1


def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"--format must be one of diffusers, modelopt-fp8, modelopt-nvfp4. Got 'x'"):
        export_quantised(tmp_path, tmp_path / "out", "x")
    monkeypatch.setattr("diffrl.precision.choice.installed", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs nvidia-modelopt 0.47 or more, .*pip install 'diffrl\[modelopt\]'"):
        export_quantised(tmp_path, tmp_path / "out", "modelopt-fp8")
    assert not (tmp_path / "out").exists()
