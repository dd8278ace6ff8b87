"""Who may read new files of this process may read what is exported; safetensors writes for the owner alone."""

import os
import stat
from contextlib import contextmanager

import pytest

from diffrl.cli import main
from diffrl.models.tiny import build_pipeline, save_pipeline
from tests.training.harness import settings, start

FORMS = {
    "lora": ("lora", ["--comfyui", "--peft"], 4),
    "pipeline": ("full", [], 4),
    "modelopt": ("full", ["--format", "modelopt-fp8"], 4),
}
LORA = {"rank": 3, "alpha": 6, "targets": ["to_q"]}


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder):
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def runs(random_sd3, tmp_path_factory):
    made = {}
    for name, lora in {"lora": LORA, "full": None}.items():
        data = settings(random_sd3, tmp_path_factory.mktemp(name), run={"iterations": 1, "checkpoint_every": 1})
        made[name] = start({**data, "model": {**data["model"], "lora": lora}})[0]
    return made


@pytest.mark.parametrize("form", [pytest.param(f, marks=[pytest.mark.long] * (f == "modelopt")) for f in FORMS])
def test_an_export_is_for_whom_the_umask_says(runs, tmp_path, form):
    if form == "modelopt":
        pytest.importorskip("modelopt")
    name, options, least = FORMS[form]
    out = tmp_path / "out"
    out.mkdir(mode=0o700)  # of the user's own making: it says nothing about files
    with umask(0o026), pytest.raises(SystemExit) as end:
        main(["export", str(runs[name]), "--out", str(out), *options])
    assert not end.value.code
    assert modes(out) == {"0o640"} and len([*out.rglob("*")]) >= least


def test_a_tiny_pipeline_is_for_whom_the_umask_says(tmp_path):
    with umask(0o022):
        save_pipeline(build_pipeline("sd3", ["a"], seed=0), tmp_path / "made")
    assert modes(tmp_path / "made") == {"0o644"}
