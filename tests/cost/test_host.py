"""The computer's memory as planned, beside what processes were measured to hold of it (RssAnon of Linux)."""

import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffrl.config.load import make_config
from diffrl.cost.host import file_weights
from diffrl.cost.plan import make_plan
from diffrl.models.architecture import describe_pipeline
from diffrl.models.tiny import EMBEDDING, build_pipeline, save_pipeline
from tests.conftest import ROOT, WORDS
from tests.training.harness import settings

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SANA = "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers"


def numbers(found, *parts):
    return sum(math.prod(shape) for name in parts or found.shapes for shape in found.shapes[name].values())


def test_files_in_another_dtype_are_converted(random_sd3, tmp_path):
    """One component in bfloat16, one in float16, all others in float32, as their headers say."""
    import shutil

    folder = shutil.copytree(random_sd3, tmp_path / "mixed")
    for part, dtype in (("vae", torch.bfloat16), ("text_encoder", torch.float16)):
        (file,) = (folder / part).glob("*.safetensors")
        save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    found, model = describe_pipeline(str(folder)), SimpleNamespace(path=str(folder), revision=None)
    vae, text, every = numbers(found, "vae"), numbers(found, "text_encoder"), numbers(found)
    assert file_weights(model, found, 2) == (2 * vae, 2 * (every - vae), ())
    assert file_weights(model, found, 4) == (4 * (every - vae - text), 4 * (vae + text), ())


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        (SANA, ("text_encoder",)),  # its network and decoder are float32
        ("black-forest-labs/FLUX.1-dev", ("transformer", "vae", "text_encoder", "text_encoder_2")),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", ()),
    ],
)
def test_of_a_published_pipeline_it_is_as_its_files_are_known(name, mapped):
    found, model = describe_pipeline(name), SimpleNamespace(path=name, revision=None)
    as_is, converted, notes = file_weights(model, found, 2)
    assert as_is == (2 * numbers(found, *mapped) if mapped else 0) and as_is + converted == 2 * numbers(found)
    assert bool(notes) == (not mapped) and all("not known here" in note for note in notes)


@pytest.fixture(scope="module")
def medium(tmp_path_factory):
    """A pipeline in float32 of 68 million weights: large beside what a process holds in small pieces."""
    from diffusers import SD3Transformer2DModel

    pipeline = build_pipeline("sd3", WORDS.split(), seed=0)
    pipeline.transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=64, num_attention_heads=16,
        joint_attention_dim=EMBEDDING, caption_projection_dim=1024, pooled_projection_dim=EMBEDDING, out_channels=4,
        pos_embed_max_size=4,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("medium") / "sd3"
    save_pipeline(pipeline, folder)
    return folder


LOAD = """
import gc, json, sys
import diffrl.models.placement as placement
from diffrl.cost.host_limits import anonymous_bytes
from diffrl.models.loading import load_adapter
placement.align = lambda module: None  # which weights on their way to a GPU do not pass
tiny, folder, dtype = sys.argv[1:]
load_adapter("sd3", tiny, dtype=dtype)  # imports what loading needs
gc.collect()
before = anonymous_bytes()
adapter = load_adapter("sd3", folder, dtype=dtype)
print(json.dumps(anonymous_bytes() - before))
"""
TRAIN = """
import json, sys
from rich.console import Console
import diffrl.checkpoint.files as files
from diffrl.config.load import make_config
from diffrl.cost.host_limits import anonymous_bytes
from diffrl.lifecycle import train
from tests.training.harness import undrawn
first, second = json.loads(sys.argv[1])
held, save = [], files.save_file
def look(*given):
    held.append(anonymous_bytes())
    return save(*given)
files.save_file = look
with undrawn():
    train(make_config(first), Console(quiet=True))  # imports what a run needs
    before = anonymous_bytes()
    held.clear()
    train(make_config(second), Console(quiet=True))
print(json.dumps(max(held) - before))
"""


def measure(script, *arguments):
    """What a process of its own prints. Large blocks go back to the system when they are freed."""
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**18), "MALLOC_ARENA_MAX": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@linux
@pytest.mark.slow
def test_what_loading_takes_is_planned(medium, random_sd3, tmp_path):
    for dtype in ("bfloat16", "float32"):
        model = {"family": "sd3", "path": str(medium), "dtype": dtype}
        host = make_plan(make_config(settings(medium, tmp_path, model=model))).memory.host
        held = measure(LOAD, str(random_sd3), str(medium), dtype)
        if dtype == "bfloat16":
            assert host.mapped == 0 and held == pytest.approx(host.passing["loading"], rel=0.1)
        else:  # the files' own: mapped, and none of the process's
            assert host.passing["loading"] == 0 and held < 0.1 * host.mapped


@linux
@pytest.mark.slow
def test_what_a_run_on_the_cpu_takes_is_planned(medium, random_sd3, tmp_path):
    """At its most, which is while the optimiser's state is copied to be saved; the process began with a tiny run."""
    rounded = {"on_policy_tolerance": 0.1}  # bfloat16 in batches of other sizes
    runs = [
        settings(path, tmp_path / name, model={"family": "sd3", "path": str(path), "dtype": "bfloat16"}, guards=rounded)
        for path, name in ((random_sd3, "first"), (medium, "second"))
    ]
    memory = make_plan(make_config(runs[1])).memory
    planned = memory.needed("cpu") - memory.kept["libraries"]
    assert measure(TRAIN, json.dumps(runs)) == pytest.approx(planned, rel=0.1)
