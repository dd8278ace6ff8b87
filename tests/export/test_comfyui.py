"""A LoRA for ComfyUI: what ComfyUI's published rule makes of the file is what peft adds to the same weights."""

import re

import pytest
import torch
from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import load_file

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.export.comfyui import comfyui_tensors
from diffrl.export.diffusers import export_run
from diffrl.models.families import FAMILIES
from diffrl.models.lora_file import FIRST_COMFYUI, SECOND_COMFYUI
from diffrl.run.checkpoints import load_aligned
from diffrl.run.directory import open_run_dir
from tests.training.harness import settings, start
from tests.training.test_two_networks import wan22, wan_settings  # noqa: F401

CPU = torch.device("cpu")
QKV = ("to_q", "to_k", "to_v")
ADDED = ("add_q_proj", "add_k_proj", "add_v_proj")
FLUX = [
    (r"transformer_blocks\.(\d+)\.attn\.", QKV, "double_blocks.{}.img_attn.qkv"),
    (r"transformer_blocks\.(\d+)\.attn\.", ADDED, "double_blocks.{}.txt_attn.qkv"),
    (r"transformer_blocks\.(\d+)\.attn\.to_out\.0", None, "double_blocks.{}.img_attn.proj"),
    (r"transformer_blocks\.(\d+)\.attn\.to_add_out", None, "double_blocks.{}.txt_attn.proj"),
]
ORIGINAL = {
    "sd3": [
        (r"transformer_blocks\.(\d+)\.attn\.", QKV, "joint_blocks.{}.x_block.attn.qkv"),
        (r"transformer_blocks\.(\d+)\.attn\.", ADDED, "joint_blocks.{}.context_block.attn.qkv"),
        (r"transformer_blocks\.(\d+)\.attn\.to_out\.0", None, "joint_blocks.{}.x_block.attn.proj"),
        (r"transformer_blocks\.(\d+)\.attn\.to_add_out", None, "joint_blocks.{}.context_block.attn.proj"),
        (r"transformer_blocks\.(\d+)\.ff\.net\.0\.proj", None, "joint_blocks.{}.x_block.mlp.fc1"),
    ],
    "flux": [
        *FLUX,
        (r"single_transformer_blocks\.(\d+)\.attn\.", QKV, "single_blocks.{}.linear1"),
        (r"transformer_blocks\.(\d+)\.ff_context\.net\.2", None, "double_blocks.{}.txt_mlp.2"),
        (r"single_transformer_blocks\.(\d+)\.proj_out", None, "single_blocks.{}.linear2"),
        (r"x_embedder", None, "img_in"),
        (r"proj_out", None, "final_layer.linear"),
    ],
    "flux2_klein": [
        *FLUX,
        (r"single_transformer_blocks\.(\d+)\.attn\.to_qkv_mlp_proj", None, "single_blocks.{}.linear1"),
        (r"transformer_blocks\.(\d+)\.ff\.linear_in", None, "double_blocks.{}.img_mlp.0"),
    ],
    "z_image": [
        (r"((?:layers|noise_refiner|context_refiner)\.\d+\.attention)\.", QKV, "{}.qkv"),
        (r"((?:layers|noise_refiner|context_refiner)\.\d+\.attention)\.to_out\.0", None, "{}.out"),
        (r"all_x_embedder\.2-1", None, "x_embedder"),
    ],
    "qwen_image": [
        (r"(transformer_blocks\.\d+\.attn\.(?:to|add)_\w+(?:\.0)?)", None, "{}"),
        (r"(transformer_blocks\.\d+\.img_mlp\.net\.2|img_in)", None, "{}"),
    ],
}
"""Layers of ComfyUI's networks in terms of diffusers': a pattern of names, whose parts are its rows in this order, and
its name. Written down from comfy/utils.py (mmdit_, flux_ and z_image_to_diffusers) and comfy/lora.py."""


def looked_up(family, layers):
    """ComfyUI's table for layers of diffusers: key in a LoRA's file -> (layer of its network, its part of the rows)."""
    table = {}
    for layer in layers:
        for pattern, parts, name in ORIGINAL[family]:
            for i, part in enumerate(parts or ("",)):
                if found := re.fullmatch(pattern + part, layer):
                    table[f"transformer.{layer}"] = (name.format(*found.groups()), i if parts else None)
    return table


def patched(file, table, rows):
    """The change of each layer of ComfyUI's network: alpha / rank * up @ down, added to its part of the rows."""
    tensors, changes, used = load_file(file), {}, set()
    for key, (layer, part) in table.items():
        up, down, alpha = (tensors[f"{key}.{end}"] for end in ("lora_B.weight", "lora_A.weight", "alpha"))
        used |= {f"{key}.{end}" for end in ("lora_B.weight", "lora_A.weight", "alpha")}
        change = changes.setdefault(layer, torch.zeros(rows[layer], down.shape[1]))
        change.narrow(0, (part or 0) * len(up), len(up)).add_(alpha.item() / len(down) * up @ down)
    assert used == tensors.keys()  # "lora key not loaded" says ComfyUI of any other
    return changes


def deltas(network):
    """What peft adds to each layer's weight, by the layer's name in diffusers."""
    layers = {name: module for name, module in network.named_modules() if hasattr(module, "get_delta_weight")}
    return {name: module.get_delta_weight("default").detach() for name, module in layers.items()}


def of(family, folder, directory):
    changes = {"family": family, "lora": {"rank": 3, "alpha": 7.5}}
    return settings(folder, directory, model=changes, train={"learning_rate": 1e-2}, run={"iterations": 1})


def test_comfyui_adds_what_peft_adds(random_sd3, tmp_path):
    """And diffusers still takes the file of its own that is beside it."""
    from diffusers import DiffusionPipeline

    run, _ = start(of("sd3", random_sd3, tmp_path))
    assert any("comfyui.safetensors" in line for line in export_run(run, tmp_path / "out", comfyui=True))
    expected = deltas(load_aligned(run, CPU).policy.inner)
    table = looked_up("sd3", expected)
    fused = {}
    for layer, delta in expected.items():
        name, part = table[f"transformer.{layer}"]
        fused.setdefault(name, {})[part] = delta
    whole = {name: torch.cat([parts[part] for part in sorted(parts, key=str)]) for name, parts in fused.items()}
    assert any(len(parts) == 3 for parts in fused.values())
    changes = patched(tmp_path / "out" / FIRST_COMFYUI, table, {name: len(delta) for name, delta in whole.items()})
    assert changes.keys() == whole.keys()
    for name, delta in whole.items():
        torch.testing.assert_close(changes[name], delta, rtol=1e-4, atol=1e-7)
    assert sum(bool(delta.any()) for delta in whole.values()) > 0.4 * len(whole)
    with safe_open(tmp_path / "out" / FIRST_COMFYUI, "pt") as file:
        spec = file.metadata()
    assert spec["modelspec.sai_model_spec"] == "1.0.0" and spec["modelspec.title"] == "run"
    assert re.fullmatch(r"modelspec\.[a-z0-9-]+/lora", f"modelspec.{spec['modelspec.architecture']}")
    assert LoraConfig.from_pretrained(str(tmp_path / "out")).r == open_run_dir(run)[1].model.lora.rank
    assert "LoraLoaderModelOnly" in (tmp_path / "out/README.md").read_text()
    pipeline = DiffusionPipeline.from_pretrained(str(random_sd3))
    pipeline.load_lora_weights(str(tmp_path / "out"), adapter_name="default")
    for name, delta in deltas(pipeline.transformer).items():
        torch.testing.assert_close(delta, expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.long
def test_both_of_wans_networks_have_the_original_names(wan22, tmp_path):  # noqa: F811
    """diffusers reads files with the original names too, by a converter of its own: it is the oracle here."""
    from diffusers import WanPipeline

    run, _ = start(wan_settings(wan22, tmp_path, start=1, size=3))
    export_run(run, tmp_path / "out", comfyui=True)
    assert "low noise" in (tmp_path / "out/README.md").read_text()
    networks = load_aligned(run, CPU).adapter.trainable_modules()
    for file, network in zip((FIRST_COMFYUI, SECOND_COMFYUI), networks.values(), strict=True):
        pipeline = WanPipeline.from_pretrained(str(wan22))
        pipeline.load_lora_weights(str(tmp_path / "out" / file), adapter_name="default")
        found, expected = deltas(pipeline.transformer), deltas(network)
        assert found.keys() == expected.keys() and any(delta.any() for delta in expected.values())
        for name, delta in expected.items():
            torch.testing.assert_close(found[name], delta, rtol=1e-5, atol=1e-8)


def test_wans_other_layers_have_the_original_names():
    """Of the network as ComfyUI has it (comfy/ldm/wan/model.py)."""
    key = FAMILIES["wan"].comfyui
    assert key("blocks.3.attn2.to_out.0") == "diffusion_model.blocks.3.cross_attn.o"
    assert key("blocks.3.ffn.net.0.proj") == "diffusion_model.blocks.3.ffn.0"
    assert key("condition_embedder.time_proj") == "diffusion_model.time_projection.1"
    assert key("proj_out") == "diffusion_model.head.head"
    assert key("blocks.3.attn2.add_k_proj") == "diffusion_model.blocks.3.cross_attn.k_img"
    assert key("condition_embedder.image_embedder.ff.net.2") == "diffusion_model.img_emb.proj.3"


def test_a_layer_that_comfyui_would_leave_out_is_refused():
    lora = {f"single_stream_modulation.linear.lora_{side}.weight": torch.zeros(3, 3) for side in "AB"}
    with pytest.raises(ConfigError, match=r"Got single_stream_modulation.linear, which it would leave out"):
        comfyui_tensors(lora, 3.0, FAMILIES["flux2_klein"])


@pytest.mark.long
def test_what_comfyui_cannot_have_is_refused_before_anything_is_written(random_pipelines, tmp_path, capsys):
    sana, _ = start(of("sana", random_pipelines("sana"), tmp_path / "sana"))
    full, _ = start(settings(random_pipelines("sd3"), tmp_path / "full", run={"iterations": 1}))
    for run, words, reason in (
        (sana, (), "Got sana (SANA), whose LoRA layers it does not find by their names"),
        (full, (), "Got one of full fine-tuning"),
        (full, ("--format", "modelopt-fp8"), "--comfyui goes with --format diffusers"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["export", str(run), "--out", str(tmp_path / "out"), "--comfyui", *words])
        assert end.value.code == 2 and reason in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "out").exists()
