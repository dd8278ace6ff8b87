"""What can be wrong with a path, each in one sentence."""

import json
import os
import shutil

import pytest
import torch

from diffrl.errors import ConfigError
from diffrl.models.loading import choose_device, load_adapter, shipped_settings

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


def test_a_path_that_is_not_there(tmp_path):
    refused(tmp_path / "nothing", "must be a diffusers directory or a hub id. Got .*which does not exist here")


def test_a_folder_without_an_index(tmp_path):
    refused(tmp_path, "which has no model_index.json. Point it at the folder")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"text"'])
def test_an_index_that_is_none(copy, content):
    (copy / "model_index.json").write_text(content)
    refused(copy, "model_index.json is not the index of a pipeline")


def test_another_pipelines_folder(copy):
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps(index | {"_class_name": "FluxPipeline"}))
    refused(copy, "model.family=sd3 needs a StableDiffusion3Pipeline. Got FluxPipeline in ")


@pytest.mark.parametrize(
    "component", ["transformer/diffusion_pytorch_model", "text_encoder/model", "vae/diffusion_pytorch_model"]
)
@pytest.mark.parametrize("damage", ["cut", "missing", "nonsense"])
def test_broken_weights(copy, component, damage):
    file = copy / f"{component}.safetensors"
    if damage == "cut":
        os.truncate(file, file.stat().st_size // 2)
    elif damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"nonsense" * 100)
    refused(copy, "could not be loaded: ")


def test_a_missing_component_config(copy):
    (copy / "vae/config.json").unlink()
    refused(copy, "could not be loaded: ")


@pytest.mark.parametrize(("family", "hint"), [("sd33", r" Did you mean 'sd3'\?"), ("unet", "")])
def test_an_unknown_family(random_sd3, family, hint):
    with pytest.raises(ConfigError, match=f"model.family must be a known name.* Got '{family}'.{hint} Known: "):
        load(random_sd3, family)


def test_an_adapter_that_cannot_be_imported(random_sd3):
    with pytest.raises(ConfigError, match="model.family 'no.such:Adapter' cannot be imported"):
        load(random_sd3, "no.such:Adapter")


def test_cuda_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="The device cuda needs a CUDA device. None was found."):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == CPU


def test_sizes_that_do_not_fit_the_patches(random_sd3):
    refused(random_sd3, "must be multiples of 8. Got 36 x 32", height=36)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not readable JSON"),
        ("[1]", "must be a JSON object of adapter options"),
        ('{"sequence_length": 3}', "may hold options of the adapter: .*max_sequence_length. Got sequence_length"),
    ],
)
def test_settings_that_are_none(copy, content, message):
    (copy / "diffrl.json").write_text(content)
    refused(copy, message)


def test_settings_may_be_missing(copy):
    (copy / "diffrl.json").unlink()
    assert shipped_settings(copy) == {} and load(copy).max_sequence_length == 256
