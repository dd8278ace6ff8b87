"""Files of weights that are not what the class is made of: refused by the look at them, whatever asks for it."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, T5EncoderModel

from diffrl.cli import main
from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.models.families import FAMILIES
from diffrl.models.loading import check_pipeline_directory, load_adapter
from diffrl.models.vetting import WITH_WEIGHTS
from diffrl.models.weights import _compare, compare_weights, weight_notes
from diffrl.preflight.check import check_config
from diffrl.training.inputs import digest_base
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
    assert len(parts) >= 3 and weight_notes(folder) == []
    for part in parts:
        found = compare_weights(part, *index[part.name])
        assert not (found.missing or found.unexpected or found.mismatched), part.name
        lost = max(key for key in load_file(weights(part)) if "norm" in key)
        change(part, lambda tensors, lost=lost: without(tensors, lost))
        (missing,) = compare_weights(part, *index[part.name]).missing
        assert missing.endswith(lost.rsplit(".", 2)[-2] + "." + lost.rsplit(".", 1)[-1])


@pytest.mark.parametrize(
    ("family", "component"),
    [("sd3", "text_encoder"), ("sd3", "transformer"), ("wan", "vae")],
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


@pytest.mark.parametrize(
    ("family", "component", "scale"),
    [
        ("sd3", "transformer", "scale_weight"),
        ("sd3", "transformer", "scale_input"),
        ("wan", "text_encoder", "weight_scale"),
    ],
)
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


@pytest.mark.parametrize("component", ["transformer", "text_encoder_2"])
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


def as_variant(part, sharded=False):
    """Its weights as fp16 alone, under the names that save_pretrained gives."""
    if sharded:
        shard(part)
    for file in [*part.glob("*.safetensors*")]:
        if file.suffix == ".json":
            placed = json.loads(re.sub(r"-(\d+-of)", r".fp16-\1", file.read_text()))
            file.unlink()
            file.with_name(file.name.replace(".json", ".fp16.json")).write_text(json.dumps(placed))
        else:
            stem, rest = file.name.removesuffix(".safetensors").partition("-0")[::2]
            half = {
                name: tensor.half() if tensor.is_floating_point() else tensor
                for name, tensor in load_file(file).items()
            }
            save_file(half, part / f"{stem}.fp16{'-0' * bool(rest)}{rest}.safetensors", metadata={"format": "pt"})
            file.unlink()


@pytest.mark.parametrize(
    ("family", "component", "sharded"), [("sd3", "text_encoder_3", True), ("wan", "transformer", False)]
)
def test_a_variant_alone_is_named(copy, family, component, sharded):
    folder = copy(family)
    as_variant(folder / component, sharded)
    stem = "model" if component.startswith("text") else "diffusion_pytorch_model"
    refused(
        folder, rf"{component} must hold {stem}.safetensors.* Got the variant fp16 alone. Set model.variant", family
    )


@pytest.mark.parametrize(("component", "sharded"), [("text_encoder", False), ("transformer", True)])
def test_a_variant_is_what_stock_diffusers_loads(copy, tmp_path, component, sharded):
    """Parts that have it are read from it, beside plain files too; the others from their plain files."""
    folder = copy()
    plain = {file.name: file.read_bytes() for file in (folder / component).glob("*.safetensors")}
    as_variant(folder / component, sharded)
    stock = StableDiffusion3Pipeline.from_pretrained(str(folder), variant="fp16", use_safetensors=True).components
    for beside in (False, True):
        if beside:
            for name, content in plain.items():
                (folder / component / name).write_bytes(content)
        check_pipeline_directory(FAMILIES["sd3"], str(folder), "fp16")
        adapter = load_adapter("sd3", str(folder), dtype="float32", device=torch.device("cpu"), variant="fp16")
        for name in ("transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3"):
            state = adapter.pipeline.components[name].state_dict()
            assert all(torch.equal(tensor, state[key]) for key, tensor in stock[name].state_dict().items()), name
    config = make_config(settings(folder, tmp_path / "runs", model={"variant": "fp16"}))
    assert check_config(config, ask_rewards=False)
    assert digest_base(config.model) != digest_base(config.model.model_copy(update={"variant": None}))


def test_a_variant_that_no_part_has_is_refused(copy, tmp_path):
    with pytest.raises(ConfigError, match="must name files of the pipeline.*bf16"):
        check_pipeline_directory(FAMILIES["sd3"], str(copy()), "bf16")


def test_generate_takes_a_variant(copy, tmp_path):
    folder = copy()
    for part in parts_of(folder):
        as_variant(part)
    with pytest.raises(SystemExit, match="^0$"):
        main(f"generate --model {folder} --variant fp16 --prompt red --steps 2 --out {tmp_path / 'out'}".split())
    assert (tmp_path / "out" / "samples.jsonl").is_file()


@pytest.mark.parametrize(("component", "how"), [("vae", "_by_diffusers"), ("text_encoder_2", "_by_transformers")])
def test_what_headers_do_not_tell_loading_does(copy, monkeypatch, component, how):
    """A class that cannot be made without weights: `check` says so, and loading counts what stayed random."""

    def raises(*_):
        raise NotImplementedError("no such operator on meta")

    folder = copy()
    monkeypatch.setattr(f"diffrl.models.weights.{how}", raises)
    monkeypatch.setattr("diffrl.models.weights._compare", _compare.__wrapped__)
    lost = max(key for key in load_file(weights(folder / component)) if "norm" in key)
    change(folder / component, lambda tensors: without(tensors, lost))
    check_pipeline_directory(FAMILIES["sd3"], str(folder))
    assert any(note.startswith(f"{component}: not compared") and "meta" in note for note in weight_notes(folder))
    with pytest.raises(ConfigError, match=f"{component} must hold every weight of .*. 1 would stay random: '{lost}'"):
        load_adapter("sd3", str(folder), dtype="float32", device=torch.device("cpu"))


def test_a_part_of_another_library_is_refused(copy):
    folder = copy()
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"text_encoder": ["mylib.nets", "Encoder"]}))
    refused(folder, "text_encoder must be a network of diffusers or transformers .*'mylib.nets.Encoder'")


@pytest.mark.parametrize("lost", [None, "final_layer_norm", "SCB"])
def test_a_quantised_text_encoder_is_compared_by_loading(copy, lost):
    pytest.importorskip("bitsandbytes")
    folder = copy()
    part = folder / "text_encoder_3"
    eight = BitsAndBytesConfig(load_in_8bit=True)
    T5EncoderModel.from_pretrained(str(part), quantization_config=eight).save_pretrained(str(part))
    change(part, lambda tensors: {key: tensor for key, tensor in tensors.items() if lost is None or lost not in key})
    check_pipeline_directory(FAMILIES["sd3"], str(folder))
    assert any("text_encoder_3: not compared" in note and "bitsandbytes" in note for note in weight_notes(folder))
    load = partial(load_adapter, "sd3", str(folder), dtype="float32", device=torch.device("cpu"))
    if lost is None:
        assert bool(torch.isfinite(load().encode_prompts(["a red circle"])["prompt_embeds"]).all())
    else:
        with pytest.raises(ConfigError, match="1 would stay random: .*layer_norm" if "norm" in lost else "conversion"):
            load()


@pytest.mark.parametrize(
    "file",
    [
        "model_index.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
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
    ("family", "component", "key", "value"),
    [
        ("sd3", "transformer", "proj_out.bias", float("nan")),
        ("sd3", "text_encoder", "text_model.embeddings.token_embedding.weight", float("inf")),  # of unused words
        ("wan", "text_encoder", "encoder.block.0.layer.0.layer_norm.weight", float("-inf")),
    ],
)
def test_weights_that_are_no_numbers_are_named(copy, family, component, key, value):
    """One number, the last, is enough, whether or not an image would show it."""
    folder = copy(family)
    state = load_file(weights(folder / component))
    named = next(name for name in state if name.endswith(key.removeprefix("text_model.")))
    state[named].flatten()[-1] = value
    change(folder / component, lambda _: state)
    with pytest.raises(ConfigError, match=rf"{key.removeprefix('text_model.')}' of .*{component} holds NaN or inf."):
        load_adapter(family, str(folder), dtype="bfloat16", device=torch.device("cpu"))


def test_generate_and_a_run_name_weights_that_are_no_numbers(copy, tmp_path, capsys):
    folder = copy()
    change(folder / "transformer", lambda tensors: tensors | {"proj_out.bias": tensors["proj_out.bias"] * float("nan")})
    with pytest.raises(SystemExit) as ended:
        main(f"generate --model {folder} --prompt red --steps 2 --out {tmp_path / 'out'}".split())
    assert ended.value.code == 2 and "'proj_out.bias' of" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="'proj_out.bias' of .*transformer holds NaN or inf"):
        start(settings(folder, tmp_path / "runs"))


def test_large_finite_weights_are_no_fault(copy):
    """Their sum overflows."""
    folder = copy()
    change(
        folder / "vae", lambda tensors: tensors | {"decoder.conv_in.bias": tensors["decoder.conv_in.bias"] * 0 + 3e38}
    )
    assert load_adapter("sd3", str(folder), dtype="float32", device=torch.device("cpu"))


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
