"""What can be wrong with a path, each in one sentence."""

import json
import os
import pickle
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from diffrl.errors import ConfigError
from diffrl.models.distilled import distilled_sign, refuse_distilled
from diffrl.models.families import FAMILIES
from diffrl.models.loading import (
    check_pipeline_directory,
    choose_device,
    infer_family,
    load_adapter,
    shipped_settings,
)
from diffrl.models.placement import Placement
from tests.training.harness import settings, start

CPU = torch.device("cpu")


def load(path, family="sd3", **options):
    return load_adapter(family, str(path), dtype="float32", device=CPU, **options)


def refused(path, message, **options):
    with pytest.raises(ConfigError, match=message) as found:
        load(path, **options)
    text = str(found.value)
    assert len(found.value.problems) == 1 and "\n" not in text and text.endswith(".")


@pytest.fixture
def copy(random_sd3, tmp_path):
    return shutil.copytree(random_sd3, tmp_path / "pipeline")


def test_a_good_pipeline_loads_frozen(random_sd3):
    adapter = load(random_sd3)
    modules = [m for m in adapter.pipeline.components.values() if isinstance(m, torch.nn.Module)]
    assert len(modules) == 5 and not any(m.training or p.requires_grad for m in modules for p in m.parameters())


def test_a_decoder_in_float32_has_its_files_numbers(random_sd3):
    """Those of float32 files are not rounded to the network's bfloat16 on their way."""
    placement = Placement(device=CPU, vae_dtype=torch.float32)
    adapter = load_adapter("sd3", str(random_sd3), dtype="bfloat16", placement=placement)
    stored = load_file(next((random_sd3 / "vae").glob("*.safetensors")))
    loaded = adapter.pipeline.vae.state_dict()
    assert all(loaded[name].dtype == torch.float32 and torch.equal(loaded[name], x) for name, x in stored.items())
    assert next(adapter.pipeline.transformer.parameters()).dtype == torch.bfloat16


def test_a_path_that_is_not_there(tmp_path):
    refused(tmp_path / "nothing", "must be a diffusers directory or a hub id. Got .*which does not exist here")


def test_a_folder_without_an_index(tmp_path):
    refused(tmp_path, "which has no model_index.json. Point it at the folder")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[]", r"must be a JSON object. Got \[\]"),
        ('"text"', "must be a JSON object"),
        ("{}", "is not the index of a pipeline"),
        ('{"_class_name": ["StableDiffusion3Pipeline"]}', "is not the index of a pipeline"),
        ('{"a": ' * 100_000 + "1" + "}" * 100_000, "is nested more than 50 levels deep"),
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", "is nested more than 50 levels deep"),
    ],
)
def test_an_index_that_is_none(copy, content, message):
    (copy / "model_index.json").write_text(content)
    refused(copy, f"model_index.json {message}")
    with pytest.raises(ConfigError, match=f"model_index.json {message}"):  # as `diffrl generate` asks
        infer_family(str(copy))


def test_another_pipelines_folder(copy):
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps(index | {"_class_name": "FluxPipeline"}))
    refused(copy, "model.family=sd3 needs a StableDiffusion3Pipeline. Got FluxPipeline in ")


def test_a_missing_component_config(copy):
    (copy / "vae/config.json").unlink()
    refused(copy, "could not be loaded: ")


def test_a_missing_component(copy):
    shutil.rmtree(copy / "vae")
    refused(copy, "a folder for each part that its model_index.json names. Got none for 'vae'")


def test_missing_weights(copy):
    (copy / "text_encoder/model.safetensors").unlink()
    refused(copy, "text_encoder must hold the weights that belong to its config.json. Got no .safetensors file")


def test_a_scheduler_without_noise_levels(copy):
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps({**index, "scheduler": ["diffusers", "DDPMScheduler"]}))
    refused(copy, "must be one of flow matching, with noise levels. It raised AttributeError")


@pytest.mark.parametrize(("family", "hint"), [("sd33", r" Did you mean 'sd3'\?"), ("unet", "")])
def test_an_unknown_family(random_sd3, family, hint):
    with pytest.raises(ConfigError, match=f"model.family must be a known name.* Got '{family}'.{hint} Known: "):
        load(random_sd3, family)


def test_an_adapter_that_cannot_be_imported(random_sd3):
    with pytest.raises(ConfigError, match="model.family 'no.such:Adapter' cannot be imported"):
        load(random_sd3, "no.such:Adapter")


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "raise RuntimeError('no card')", "def broken(:"])
def test_an_adapter_whose_module_raises_anything(random_sd3, tmp_path, monkeypatch, text):
    (tmp_path / "raising_adapter.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="model.family 'raising_adapter:Adapter' cannot be imported: [A-Z][a-z]+"):
        load(random_sd3, "raising_adapter:Adapter")


@pytest.mark.parametrize(
    ("family", "other", "way_out"),
    [
        ("sd3", "FluxPipeline", "Set model.family: flux, or choose another path."),
        ("flux", "WanPipeline", "Set model.family: wan, or choose another path."),
        ("wan", "WanImageToVideoPipeline", "Set model.family: wan_i2v, or choose another path."),
        ("wan", "WanVACEPipeline", r"No family of this version loads that class \(sd3: .*docs/add-a-model.md"),
        ("sana", "SanaSprintPipeline", "No family of this version loads that class"),
    ],
)
def test_a_class_of_another_family_or_of_none(copy, family, other, way_out):
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps(index | {"_class_name": other}))
    with pytest.raises(ConfigError, match=f"model.family={family} needs a .* Got {other} in .* {way_out}"):
        load(copy, family)


def hub_error(kind):
    import huggingface_hub.errors as errors

    made = getattr(errors, kind)
    if not issubclass(made, errors.HfHubHTTPError):
        return made("the hub said no")
    return made("the hub said no", response=SimpleNamespace(headers={}, request=None))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "GatedRepoError",
            "is gated. Accept its terms at https://huggingface.co/some/model, then run `hf auth login`.",
        ),
        ("RepositoryNotFoundError", "is no model on the hub that this account can see. Check the spelling"),
        ("RevisionNotFoundError", "model.revision is no branch, tag or commit of 'some/model'"),
        ("LocalEntryNotFoundError", "neither a folder here nor in the hub's cache, and the hub cannot be reached"),
        ("OfflineModeIsEnabled", "neither a folder here nor in the hub's cache, and the hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses(monkeypatch, kind, message):
    from diffusers import configuration_utils

    def refuse(*args, **kwargs):
        raise hub_error(kind)

    monkeypatch.setattr(configuration_utils, "hf_hub_download", refuse)  # diffusers words some of them anew
    refused("some/model", message)


UNREACHED = "neither a folder here nor in the hub's cache, and the hub cannot be reached"


def test_a_hub_id_without_a_network():
    refused("no-such-owner/no-such-model", UNREACHED)
    with pytest.raises(ConfigError, match=UNREACHED):  # whose class is known, and no family was asked for
        infer_family("black-forest-labs/FLUX.1-dev")


class Payload:
    """Unpickled, it leaves a trace: what a hostile file would do."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return open, (self.trace, "w")


@pytest.mark.parametrize("component", ["transformer/diffusion_pytorch_model", "text_encoder/model"])
def test_a_pickle_is_not_opened(copy, tmp_path, monkeypatch, component):
    weights, trace = copy / f"{component}.safetensors", tmp_path / "trace"
    file = weights.with_name("pytorch_model.bin") if "text" in component else weights.with_suffix(".bin")
    file.write_bytes(pickle.dumps({"weight": Payload(trace)}))
    assert load(copy)  # beside safetensors it is left alone
    weights.unlink()
    opened = []
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: opened.append(args))
    refused(copy, f"must hold its weights as safetensors. Got {file.name}, a pickle")
    assert not opened and not trace.exists()
    with pytest.raises(ConfigError, match="a pickle"):
        check_pipeline_directory(FAMILIES["sd3"], str(copy))


def test_every_library_is_asked_for_safetensors(random_sd3, monkeypatch):
    """So that no pickle is opened that comes to be there between the look and the loading."""
    import diffusers

    asked, real = {}, diffusers.StableDiffusion3Pipeline.from_pretrained
    monkeypatch.setattr(
        diffusers.StableDiffusion3Pipeline, "from_pretrained", lambda *a, **k: asked.update(k) or real(*a, **k)
    )
    load(random_sd3)
    assert asked["use_safetensors"] is True


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("text_encoder_3/config.json", "num_layers", 10**9, "'num_layers' of .* must be <= 1,000. Got 1000000000"),
        ("scheduler/scheduler_config.json", "num_train_timesteps", 10**9, "must be <= 100,000. Got 1000000000"),
        ("scheduler/scheduler_config.json", "shift", 1e30, "noise levels that fall from 1 to 0. Got"),
        ("text_encoder_3/config.json", "relative_attention_num_buckets", 10**9, "must be <= 32,768. Got 1000000000"),
        ("text_encoder/config.json", "max_position_embeddings", 10**9, "must be <= 2,000,000. Got 1000000000"),
        ("text_encoder/config.json", "vocab_size", 10**30, "must be <= 32,768. Got 1000000"),
        ("transformer/config.json", "pos_embed_max_size", 30_000, "the square root of 16. Got 30000"),
        ("tokenizer/tokenizer_config.json", "model_max_length", 10**9, "must be <= 16, the places of its text encoder"),
        ("text_encoder/config.json", "num_attention_heads", 7, "could not be loaded: "),
        ("vae/config.json", "block_out_channels", [10**9, 32, 64], "must be <= 32,768"),
    ],
)
def test_what_a_pipeline_says_is_bounded(copy, file, key, value, message):
    content = json.loads((copy / file).read_text())
    assert key in content
    (copy / file).write_text(json.dumps(content | {key: value}))
    refused(copy, message)


@pytest.mark.parametrize("file", ["model_index.json", "vae/config.json", "transformer/other.safetensors"])
def test_a_pipe_in_a_pipeline_is_not_opened(copy, file):
    (copy / file).unlink(missing_ok=True)
    os.mkfifo(copy / file)
    refused(copy, "it must be a plain file, and is a pipe|has no model_index.json")


@pytest.mark.parametrize("path", ["no owner/no model", "a/b:c", "a/" + "b" * 200, "-a/b-", "a/../b", "a\0/b"])
def test_a_path_that_is_no_name_on_the_hub(path):
    refused(path, "must be a diffusers directory or a hub id")
    with pytest.raises(ConfigError, match="must be a diffusers directory or a hub id"):
        infer_family(path)


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder"])
def test_weights_of_another_shape(copy, component):
    from safetensors.torch import load_file, save_file

    (file,) = (copy / component).glob("*.safetensors")
    tensors = load_file(file)
    name = max(tensors, key=lambda name: tensors[name].numel())
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, file, metadata={"format": "pt"})
    shape = tuple(tensors[name].shape)
    refused(copy, re.escape(f"'{name}' of {copy / component} must have shape {shape} by its config.json. Got "))


@pytest.mark.parametrize(
    ("family", "path", "sign"),
    [
        ("flux", "black-forest-labs/FLUX.1-schnell", "schnell"),
        ("sd3", "stabilityai/stable-diffusion-3.5-large-turbo", "turbo"),
        ("sana", "models/Sana_Sprint_1.6B", "sprint"),
        ("wan", "lightx2v/Wan2.1-T2V-14B-CausVid", "causvid"),
    ],
)
def test_distilled_checkpoints_are_recognised_by_name(family, path, sign):
    with pytest.raises(
        ConfigError, match=f"not distilled to few steps.*whose name says '{sign}'.*allow_distilled: true"
    ):
        refuse_distilled(FAMILIES[family], path, allowed=False)
    refuse_distilled(FAMILIES[family], path, allowed=True)


def test_other_checkpoints_are_not_taken_for_distilled():
    for family, path in (
        ("flux", "black-forest-labs/FLUX.1-dev"),
        ("sd3", "stabilityai/stable-diffusion-3.5-large"),
        ("sana", "Efficient-Large-Model/Sana_1600M_1024px_diffusers"),
        ("wan", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"),
        ("sd3", "turbo/own-model"),  # the owner's name says nothing
    ):
        assert distilled_sign(FAMILIES[family], path) is None


def test_a_flux_without_guidance_embedding_is_distilled(random_pipelines, tmp_path):
    folder = shutil.copytree(random_pipelines("flux"), tmp_path / "mine")
    assert distilled_sign(FAMILIES["flux"], str(folder)) is None
    config = folder / "transformer/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"guidance_embeds": False}))
    assert distilled_sign(FAMILIES["flux"], str(folder)) == "whose transformer/config.json has guidance_embeds: false"


def test_training_a_distilled_checkpoint_is_refused_and_nothing_is_written(random_sd3, tmp_path):
    folder = shutil.copytree(random_sd3, tmp_path / "my-turbo")
    with pytest.raises(ConfigError, match="not distilled to few steps"):
        start(settings(folder, tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_cuda_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="The device cuda needs a CUDA device. None was found."):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == CPU


def test_a_size_beyond_the_position_table(random_sd3):
    refused(random_sd3, "must be at most 32, the size of this model's position table. Got 40 x 32", height=40)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", r"must be a JSON object. Got \[1\]"),
        (
            '{"sequence_length": 3}',
            'may hold options of the adapter: .*max_sequence_length. Got \\["sequence_length"\\]',
        ),
        ('{"max_sequence_length": 1000000000}', "must be a whole number >= 1 and <= 1024. Got 1000000000"),
        ('{"height": "32"}', 'must be a whole number >= 1 and <= 16383. Got "32"'),
        ('{"width": true}', "must be a whole number >= 1"),
        ("[" * 100_000, "is nested more than 50 levels deep"),
    ],
)
def test_settings_that_are_none(copy, content, message):
    (copy / "diffrl.json").write_text(content)
    refused(copy, message)


def test_settings_may_be_missing(copy):
    (copy / "diffrl.json").unlink()
    assert shipped_settings(copy) == {} and load(copy).max_sequence_length == 256
