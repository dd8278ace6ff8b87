"""Files of weights that are not what the class is made of: refused by the look at them, whatever asks for it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffrl.cli import main
from diffrl.config.load import make_config
from diffrl.errors import ConfigError, GuardStop
from diffrl.models.families import FAMILIES
from diffrl.models.loading import check_pipeline_directory, load_adapter
from diffrl.models.vetting import WITH_WEIGHTS
from diffrl.models.weights import compare_weights, unused_weights
from diffrl.run.check import check_config
from tests.tiers import daily
from tests.training.harness import settings, start

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 4718592\n"


@pytest.fixture
def copy(random_pipelines, tmp_path):
    return lambda family="sd3": Path(shutil.copytree(random_pipelines(family), tmp_path / family))


def weights(part):
    (file,) = part.glob("*.safetensors")
    return file


def change(part, alter):
    save_file(alter(load_file(weights(part))), weights(part), metadata={"format": "pt"})


def without(tensors, key):
    return {name: tensor for name, tensor in tensors.items() if name != key}


def refused(folder, message, family="sd3"):
    """By the look that `check` takes, and by loading."""
    with pytest.raises(ConfigError, match=message) as found:
        check_pipeline_directory(FAMILIES[family], str(folder))
    with pytest.raises(ConfigError, match=message):
        load_adapter(family, str(folder), dtype="float32", device=torch.device("cpu"))
    text = str(found.value)
    assert "\n" not in text and text.endswith(".")


def parts_of(folder):
    return sorted(part for part in folder.iterdir() if WITH_WEIGHTS.fullmatch(part.name) and part.is_dir())


@pytest.mark.parametrize("family", daily(list(FAMILIES), ["sd3", "wan"]))
def test_every_component_is_compared(copy, family):
    """As it was saved it is complete; without one norm, that one is missing."""
    folder = copy(family)
    index = json.loads((folder / "model_index.json").read_text())
    parts = parts_of(folder)
    assert len(parts) >= 3 and unused_weights(folder) == []
    for part in parts:
        found = compare_weights(part, *index[part.name])
        assert not (found.missing or found.unexpected or found.mismatched), part.name
        lost = max(key for key in load_file(weights(part)) if "norm" in key)
        change(part, lambda tensors, lost=lost: without(tensors, lost))
        (missing,) = compare_weights(part, *index[part.name]).missing
        assert missing.endswith(lost.rsplit(".", 2)[-2] + "." + lost.rsplit(".", 1)[-1])


@pytest.mark.parametrize(
    ("family", "component"),
    [("sd3", "text_encoder"), ("sd3", "transformer"), ("sd3", "vae"), ("wan", "text_encoder"), ("wan", "vae")],
)
def test_weights_that_would_be_random(copy, family, component):
    folder = copy(family)
    part = folder / component
    keys = [key for key in load_file(weights(part)) if "norm" in key]
    change(part, lambda tensors: {key: tensor for key, tensor in tensors.items() if key not in keys})
    refused(folder, f"{component} must hold every weight of .*. {len(keys)} would stay random: .* others", family)


def test_check_and_generate_refuse_what_would_be_random(copy, tmp_path, capsys):
    folder = copy()
    change(folder / "text_encoder", lambda tensors: dict(list(tensors.items())[: len(tensors) // 2]))
    with pytest.raises(ConfigError, match="text_encoder must hold every weight of CLIPTextModelWithProjection"):
        check_config(make_config(settings(folder, tmp_path / "runs")), ask_rewards=False)
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--model", str(folder), "--prompt", "a red circle", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2 and "would stay random" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("scale", ["scale_weight", "scale_input", "weight_scale"])
@pytest.mark.parametrize(("family", "component"), [("sd3", "transformer"), ("wan", "text_encoder")])
def test_scaled_fp8_is_not_used_without_its_scale(copy, family, component, scale):
    folder = copy(family)

    def scaled(tensors):
        name = next(key for key in tensors if key.endswith(".weight") and tensors[key].ndim == 2)
        eight = tensors[name].to(torch.float8_e4m3fn)
        return tensors | {name: eight, name.removesuffix("weight") + scale: torch.tensor(2.0)}

    change(folder / component, scaled)
    refused(folder, f"{component} must hold weights that are used as they are. Got scaled fp8.*{scale}", family)


def test_weights_that_no_layer_takes_are_named(copy, tmp_path):
    folder = copy()
    change(folder / "transformer", lambda tensors: tensors | {"other.weight": torch.zeros(3)})
    lines = check_config(make_config(settings(folder, tmp_path / "runs")), ask_rewards=False)
    assert any("transformer: not used: 'other.weight'" in line for line in lines)
    assert load_adapter("sd3", str(folder), dtype="float32", device=torch.device("cpu"))


def shard(part):
    """In two files with an index."""
    file = weights(part)
    tensors = load_file(file)
    names = [file.name.replace(".safetensors", f"-0000{number}-of-00002.safetensors") for number in (1, 2)]
    placed = {key: names[number % 2] for number, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({key: tensors[key] for key in placed if placed[key] == name}, part / name, metadata={"format": "pt"})
    file.unlink()
    index = part / f"{file.name}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    return index, [part / name for name in names]


@pytest.mark.parametrize("component", ["transformer", "text_encoder_2", "vae"])
def test_shards(copy, component):
    folder = copy()
    index, (first, second) = shard(folder / component)
    check_pipeline_directory(FAMILIES["sd3"], str(folder))
    assert load_adapter("sd3", str(folder), dtype="float32", device=torch.device("cpu"))
    content, kept = json.loads(index.read_text()), second.read_bytes()
    second.unlink()
    refused(folder, f"{index.name} names files that are not there: '{second.name}'")
    second.write_bytes(kept)
    index.write_text(json.dumps({"weight_map": content["weight_map"] | {"other.bias": first.name}}))
    refused(folder, f"{index.name} names tensors that {first.name} does not hold: 'other.bias'")
    index.write_text('{"weight_map": [1]}')
    refused(folder, f"{index.name} must have a weight_map")
    index.unlink()
    refused(folder, f"{component} must hold .*.safetensors, or .*index.json and its files. Got '{first.name}'")


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("family", "component"), [("sd3", "text_encoder_3"), ("wan", "transformer")])
def test_a_variant_alone_is_named(copy, family, component, sharded):
    folder = copy(family)
    stem = weights(folder / component).name.removesuffix(".safetensors")
    if sharded:
        shard(folder / component)
    for file in [*(folder / component).glob("*.safetensors*")]:
        file.rename(file.with_name(file.name.replace(stem, f"{stem}.fp16", 1)))
    refused(folder, rf"{component} must hold {stem}.safetensors.* Got the variant fp16 alone. .*variant='fp16'", family)


@pytest.mark.parametrize(
    "file",
    [
        "model_index.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
        "tokenizer/tokenizer.json",
        "tokenizer_3/tokenizer.json",
    ],
)
def test_files_that_are_not_whole(copy, file):
    path = copy() / file
    assert path.is_file()
    text = path.read_bytes()
    path.write_text(POINTER)
    refused(path.parents[file.count("/")], f"{file} must be the file itself. Got a Git-LFS pointer to it. Run: git lfs")
    path.write_bytes(b"")
    refused(path.parents[file.count("/")], f"{file} must not be empty|{file} is no JSON")
    path.write_bytes(text[: len(text) // 2])
    refused(path.parents[file.count("/")], f"{file} (must be whole|is no JSON|must be a safetensors file)")


@pytest.mark.parametrize("file", ["transformer/diffusion_pytorch_model.safetensors", "tokenizer/tokenizer.json"])
def test_links_of_the_hubs_cache(copy, tmp_path, file):
    folder = copy()
    (folder / file).rename(tmp_path / "blob")
    (folder / file).symlink_to(os.path.relpath(tmp_path / "blob", (folder / file).parent))
    check_pipeline_directory(FAMILIES["sd3"], str(folder))
    (tmp_path / "blob").unlink()
    refused(folder, f"{file} cannot be read: No such file or directory. It is a link to .*blob'. Fetch it again.")


@pytest.mark.parametrize(
    ("family", "component", "key"),
    [
        ("sd3", "transformer", "proj_out.bias"),
        ("sd3", "text_encoder", "text_model.final_layer_norm.weight"),
        ("sd3", "vae", "decoder.conv_norm_out.weight"),
        ("wan", "transformer", "proj_out.bias"),
    ],
)
def test_weights_that_are_no_numbers_are_named(copy, tmp_path, capsys, family, component, key):
    folder = copy(family)
    change(folder / component, lambda tensors: tensors | {key: tensors[key] * float("nan")})
    with pytest.raises(SystemExit) as ended:
        main(f"generate --model {folder} --prompt red --steps 2 --out {tmp_path / 'out'}".split())
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 3 and f"'{key}' of {weights(folder / component)} holds NaN or inf." in said
    assert "learning_rate" not in said and "dtype" not in said


def test_a_run_names_weights_that_are_no_numbers(copy, tmp_path):
    folder = copy()
    key = max(load_file(weights(folder / "transformer")))
    change(folder / "transformer", lambda tensors: tensors | {key: tensors[key] * float("inf")})
    with pytest.raises(GuardStop, match=f"after denoising.* '{key}' of .*safetensors holds NaN or inf. Fetch the file"):
        start(settings(folder, tmp_path / "runs"))


@pytest.mark.parametrize("component", ["text_encoder", "text_encoder_2"])
def test_names_of_older_versions_and_tied_weights_are_no_fault(copy, component):
    """CLIP under its former prefix, with a buffer that is saved no more; T5 with its tied embedding twice."""
    folder = copy("flux")
    library, name = json.loads((folder / "model_index.json").read_text())[component]

    def older(tensors):
        if name == "T5EncoderModel":
            return tensors | {"encoder.embed_tokens.weight": tensors["shared.weight"].clone()}
        named = {f"text_model.{key.removeprefix('text_model.')}": tensor for key, tensor in tensors.items()}
        return named | {"text_model.embeddings.position_ids": torch.arange(16)[None]}

    change(folder / component, older)
    found = compare_weights(folder / component, library, name)
    assert not (found.missing or found.unexpected or found.mismatched)
    change(folder / component, lambda tensors: dict(list(tensors.items())[::2]))
    assert compare_weights(folder / component, library, name).missing
