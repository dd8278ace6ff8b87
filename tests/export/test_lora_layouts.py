"""Whoever wrote a LoRA's file: what it changes in the network is scale * B A, rebuilt here from the file by hand."""

import json
import re

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from diffrl.export.diffusers import export_run
from diffrl.export.pictures import open_pipeline
from diffrl.export.request import ModelOptions
from diffrl.models.families import FAMILIES as ALL
from diffrl.run.checkpoints import load_aligned
from diffrl.run.start_weights import restore_initial
from tests.export.test_comfyui import ORIGINAL
from tests.tiers import daily
from tests.training.harness import make_trainer, settings, start
from tests.training.test_two_networks import wan22, wan_settings  # noqa: F401

CPU = torch.device("cpu")
RANK, ALPHA = 3, 7.5
WAN = {"attn1": "self_attn", "attn2": "cross_attn", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o"}
WAN |= {"ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2", "proj_out": "head.head"}


def linears(network):
    return {
        name.removesuffix(".base_layer"): module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and ".lora_" not in name
    }


def changes(network):
    """What each changed linear layer adds to its inputs' unit vectors, compared with what it did before: (out, in)."""
    found = {}
    for name, module in linears(network).items():
        layer = network.get_submodule(name)
        if layer is not module:
            unit = torch.eye(module.in_features)
            with torch.no_grad():
                found[name] = (layer(unit) - module(unit)).T
    return {name: change for name, change in found.items() if change.any()}


def original(family, layers):
    """Layers by the names that the network's makers gave them, with the parts of fused ones in order of their rows."""
    if family == "wan":
        named = {}
        for layer in layers:
            name = layer
            for ours, theirs in WAN.items():
                name = re.sub(rf"(^|(?<=\.)){re.escape(ours)}($|(?=\.))", theirs, name)
            named[name] = [layer]
        return named
    named = {}
    for pattern, parts, name in ORIGINAL[family]:
        for part in parts or ("",):
            for layer in layers:
                if found := re.fullmatch(pattern + part, layer):
                    named.setdefault(name.format(*found.groups()), []).append(layer)
    if family == "flux":
        for name in named:
            if name.endswith("linear1"):  # queries, keys, values, then the MLP
                named[name].append(f"single_transformer_blocks.{name.split('.')[1]}.proj_mlp")
    return named


def chosen(family, network):
    """The layers that a file changes: all that the hand-written tables know."""
    shapes = {name: (one.out_features, one.in_features) for name, one in linears(network).items()}
    if family == "wan":
        return {n: s for n, s in shapes.items() if ".attn" in n or ".ffn." in n or n == "proj_out"}
    return {n: shapes[n] for parts in original(family, shapes).values() for n in parts}


def draw_pair(shape, rank, generator):
    out, into = shape
    return torch.randn(rank, into, generator=generator), torch.randn(out, rank, generator=generator)


def write(layout, family, network, path, generator):
    """A file in somebody's layout; returns what it changes, by the layer's name in diffusers: (out, in)."""
    shapes, tensors, expected = chosen(family, network), {}, {}
    names = {n: [n] for n in shapes} if layout in DIFFUSERS else original(family, shapes)
    prefix, separator, down, up = LAYOUTS[layout]
    for i, (name, parts) in enumerate(names.items()):
        rank, alpha = (2 + i % 3, 1.5 * (1 + i % 2)) if layout == "kohya" else (RANK, ALPHA)
        alpha = rank if layout in ("bare", "comfyui") else alpha
        a, b = draw_pair((sum(shapes[part][0] for part in parts), shapes[parts[0]][1]), rank, generator)
        key = prefix + name.replace(".", separator)
        tensors |= {f"{key}.{down}.weight": a, f"{key}.{up}.weight": b}
        if layout == "kohya":
            tensors[f"{key}.alpha"] = torch.tensor(alpha)
        rows = (alpha / rank * b @ a).split([shapes[part][0] for part in parts])
        expected |= dict(zip(parts, rows, strict=True))
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": sorted(shapes)}
    metadata = None
    if layout == "peft":
        (path / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, path / "adapter_model.safetensors")
        return path, expected
    if layout == "diffusers":
        metadata = {"lora_adapter_metadata": json.dumps({f"transformer.{key}": value for key, value in config.items()})}
    save_file(tensors, path / "lora.safetensors", metadata)
    return path / "lora.safetensors", expected


LAYOUTS = {
    "diffusers": ("transformer.", ".", "lora_A", "lora_B"),
    "bare": ("", ".", "lora_A", "lora_B"),
    "peft": ("base_model.model.", ".", "lora_A", "lora_B"),
    "kohya": ("lora_unet_", "_", "lora_down", "lora_up"),
    "comfyui": ("diffusion_model.", ".", "lora_A", "lora_B"),
}
DIFFUSERS = ("diffusers", "bare", "peft")
FAMILIES = [*ORIGINAL, "wan"]
CASES = [("sd3", layout) for layout in LAYOUTS] + [(family, "comfyui") for family in FAMILIES if family != "sd3"]
CASES += [("flux", "kohya"), ("wan", "kohya")]
DAILY = [*CASES[: len(LAYOUTS)], *CASES[-2:]]


def opened(family, folder, path=None):
    lora, frames = None if path is None else str(path), 5 if family == "wan" else None
    options = ModelOptions(model=str(folder), family=family, height=32, width=32, frames=frames, lora=lora)
    return open_pipeline(options, CPU)[0].transformer


def assert_changes(found, expected):
    assert found.keys() == expected.keys()
    for name, change in expected.items():
        torch.testing.assert_close(found[name], change, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("family", "layout"), daily(CASES, DAILY))
def test_a_file_of_any_layout_changes_what_it_holds(random_pipelines, tmp_path, family, layout):
    """Also with several ranks and alphas in one file (kohya)."""
    folder = random_pipelines(family)
    generator = torch.Generator().manual_seed(3)
    path, expected = write(layout, family, opened(family, folder), tmp_path, generator)
    assert_changes(changes(opened(family, folder, path)), expected)


TARGETS = {"flux": ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"], "wan": ["attn1.to_q", "ffn.net.2"]}
TRAINED = [("sd3", "peft"), ("sd3", "kohya"), ("flux", "comfyui"), ("wan", "kohya")]


@pytest.mark.parametrize(("family", "layout"), daily(TRAINED, TRAINED[:2]))
def test_training_begins_with_what_the_file_changes(random_pipelines, tmp_path, family, layout, monkeypatch):
    """The configuration's alpha is another, and the file may have several."""
    folder = random_pipelines(family)
    targets = TARGETS.get(family, ["attn.to_q", "attn.to_k", "attn.to_v"])
    whole = chosen(family, opened(family, folder))
    wanted = {n: s for n, s in whole.items() if any(n.endswith(f".{target}") for target in targets)}
    monkeypatch.setattr(f"{__name__}.chosen", lambda *_: wanted)
    generator = torch.Generator().manual_seed(5)
    path, expected = write(layout, family, opened(family, folder), tmp_path, generator)
    if layout == "kohya":  # one rank
        tensors = {
            key: tensor
            if key.endswith("alpha")
            else (tensor[:2] if "down" in key else tensor[:, :2]).clone(memory_format=torch.contiguous_format)
            for key, tensor in load_file(path).items()
        }
        save_file(tensors, path)
        names = original(family, wanted)
        for name, parts in names.items():
            key = "lora_unet_" + name.replace(".", "_")
            change = tensors[f"{key}.alpha"] / 2 * tensors[f"{key}.lora_up.weight"] @ tensors[f"{key}.lora_down.weight"]
            expected |= dict(zip(parts, change.split([wanted[part][0] for part in parts]), strict=True))
    rank = 2 if layout == "kohya" else RANK
    lora = {"rank": rank, "alpha": 5, "targets": targets, "start": {"path": str(path)}}
    trainer = make_trainer(settings(folder, tmp_path / "run", model={"family": family, "lora": lora}))
    (said,) = restore_initial(trainer.session.policy, trainer.config)
    assert "Begins with the LoRA" in said
    assert_changes(changes(trainer.session.policy.inner), expected)


EXPORTED = [name for name, facts in ALL.items() if not facts.edits]


@pytest.mark.long
@pytest.mark.parametrize("family", daily(EXPORTED, ("sd3", "wan", "flux"), set(EXPORTED) - {"sd3", "wan", "flux"}))
def test_what_is_exported_is_read_again(random_pipelines, tmp_path, family):
    """In every layout that is written: diffusers', ComfyUI's, PEFT's."""
    folder = random_pipelines(family)
    model = {"family": family, "lora": {"rank": RANK, "alpha": ALPHA}}
    guards = {"reward_hacking": {"action": "off"}}  # such a rate ruins the model
    data = settings(folder, tmp_path, model=model, train={"learning_rate": 3e-2}, run={"iterations": 1}, guards=guards)
    run, _ = start(data)
    comfyui = ALL[family].comfyui is not None
    assert any("For peft" in line for line in export_run(run, tmp_path / "out", comfyui=comfyui, peft=True))
    expected = changes(load_aligned(run, CPU).policy.inner)
    assert expected
    for file in ("", "pytorch_lora_weights.safetensors", "peft", *(["comfyui.safetensors"] if comfyui else [])):
        assert_changes(changes(opened(family, folder, tmp_path / "out" / file)), expected)
    theirs = PeftModel.from_pretrained(opened(family, folder), str(tmp_path / "out/peft"))
    assert_changes(changes(theirs.base_model.model), expected)


def test_the_last_modulation_of_flux_has_its_halves_the_other_way_round(random_pipelines, tmp_path):
    """The original network computes shift, then scale; diffusers' scale, then shift (AdaLayerNormContinuous)."""
    folder = random_pipelines("flux")
    a, b = draw_pair((64, 32), 2, torch.Generator().manual_seed(7))
    stem = "lora_unet_final_layer_adaLN_modulation_1"
    save_file({f"{stem}.lora_down.weight": a, f"{stem}.lora_up.weight": b}, tmp_path / "lora.safetensors")
    change = changes(opened("flux", folder, tmp_path / "lora.safetensors"))["norm_out.linear"]
    torch.testing.assert_close(change, (b @ a).roll(32, 0), rtol=1e-3, atol=1e-4)


def test_a_fused_layer_trained_in_parts_has_the_rank_of_a_part(random_pipelines, tmp_path):
    """kohya's split_qkv saves three LoRAs as one of three times the rank, whose B has blocks and zeros."""
    folder, generator = random_pipelines("sd3"), torch.Generator().manual_seed(9)
    tensors, expected = {}, {}
    for name, parts in original("sd3", chosen("sd3", opened("sd3", folder))).items():
        if name.endswith("x_block.attn.qkv"):
            pairs = [draw_pair((128, 128), 2, generator) for _ in parts]
            key = "lora_unet_" + name.replace(".", "_")
            tensors[f"{key}.lora_down.weight"] = torch.cat([a for a, _ in pairs])
            tensors[f"{key}.lora_up.weight"] = torch.block_diag(*(b for _, b in pairs))
            tensors[f"{key}.alpha"] = torch.tensor(9.0)
            expected |= {part: 9 / 6 * b @ a for part, (a, b) in zip(parts, pairs, strict=True)}
    path = tmp_path / "lora.safetensors"
    save_file(tensors, path)
    assert_changes(changes(opened("sd3", folder, path)), expected)
    lora = {"rank": 2, "alpha": 5, "targets": ["attn.to_q", "attn.to_k", "attn.to_v"], "start": {"path": str(path)}}
    trainer = make_trainer(settings(folder, tmp_path / "run", model={"lora": lora}))
    restore_initial(trainer.session.policy, trainer.config)
    assert_changes(changes(trainer.session.policy.inner), expected)


@pytest.mark.slow
def test_both_networks_of_an_export_are_read_again(wan22, tmp_path):  # noqa: F811
    run, _ = start(wan_settings(wan22, tmp_path, start=1, size=3))
    export_run(run, tmp_path / "out", comfyui=True, peft=True)
    expected = load_aligned(run, CPU).adapter.trainable_modules()
    for layout, files in {"diffusers": "pytorch_lora_weights*", "comfyui": "comfyui*", "peft": "peft*"}.items():
        (tmp_path / layout).mkdir()
        for one in (tmp_path / "out").glob(files):
            one.rename(tmp_path / layout / one.name)
        sizes = {"height": 32, "width": 32, "frames": 9}
        options = ModelOptions(model=str(wan22), family="wan", lora=str(tmp_path / layout), **sizes)
        for name, network in open_pipeline(options, CPU)[0].trainable_modules().items():
            assert changes(network)
            assert_changes(changes(network), changes(expected[name]))
