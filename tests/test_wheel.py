"""What the wheel carries, and that a newcomer gets through it without a clone."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import diffrl
from diffrl.bundled import pipeline_folder, recipe_summary, recipes

ROOT = Path(__file__).parents[1]
CARRIED = ("diffrl", "reward_models", "configs", "assets/tiny-*", "assets/published", ":!configs/src")


def tracked(*paths: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_wheel_and_the_source_distribution_carry_every_file_of_ours(tmp_path, monkeypatch):
    pytest.importorskip("setuptools", minversion="77")
    from setuptools.config.pyprojecttoml import apply_configuration
    from setuptools.dist import Distribution

    monkeypatch.chdir(ROOT)
    distribution = apply_configuration(Distribution({"script_name": "-"}), "pyproject.toml")
    distribution.get_command_obj("egg_info").egg_base = str(tmp_path)
    build = distribution.get_command_obj("build_py")
    build.build_lib = str(tmp_path / "lib")
    build.ensure_finalized()
    wheel = {Path(name).relative_to(tmp_path / "lib").as_posix() for name in build.get_outputs(include_bytecode=False)}
    expected = tracked(*CARRIED)
    outside = ("configs/", "assets/")
    missing = {f"diffrl/_bundled/{name}" if name.startswith(outside) else name for name in expected} - wheel
    assert not missing and len(expected) > 400
    source = {str(name) for name in build.get_source_files()}
    for _, folder, _, names in build.get_data_files_without_manifest():
        source |= {os.path.normpath(os.path.join(folder, name)) for name in names}
    assert not {*expected, "scripts/bundle.py"} - source


def test_recipes_are_those_of_the_clone_and_each_says_what_it_is_for():
    assert all(len(recipe_summary(file)) > 20 for file in recipes().values())
    assert sorted(map(str, recipes().values())) == sorted(
        str(ROOT / name) for name in tracked("configs/*.yaml", ":!configs/src")
    )


def test_a_tiny_pipeline_is_named_from_anywhere_and_one_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pipeline_folder("assets/tiny-sd3").resolve() == ROOT / "assets" / "tiny-sd3"
    for other in ("assets/tiny-none", "nobody/tiny-sd3", "assets/../assets/tiny-sd3", "assets/readme"):
        assert pipeline_folder(other) == Path(other)
    (tmp_path / "assets" / "tiny-sd3").mkdir(parents=True)
    assert pipeline_folder("assets/tiny-sd3") == Path("assets/tiny-sd3")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment that holds the wheel, and sees the packages that this one has; the folder of its commands."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked("pyproject.toml", "README.md", "LICENSE", "scripts", *CARRIED):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source"]
    subprocess.run([*pip, *wheel], check=True)
    venv.create(folder / "venv", with_pip=False)
    into = ["--python", folder / "venv" / "bin" / "python", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, *into, *folder.glob("diffrl-*.whl")], check=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "venv" / "bin"


@pytest.mark.slow
def test_the_first_minutes_need_no_clone(installed, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def run(*arguments: str, code: int = 0) -> str:
        command = [installed / "diffrl", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert run("--version") == f"diffrl {diffrl.__version__}\n"
    assert "sd3/flow_grpo" in run("init", "--list")
    assert "sd3/flow_grpo" in run("init", "flowgrpo", code=2)
    assert "diffrl init quickstart" in run("train", "configs/quickstart.yaml", code=2)
    run("init", "quickstart")
    run("init", "quickstart", code=2)
    first = (tmp_path / "quickstart.yaml").read_text().splitlines()[0]
    assert Path(first.partition("$schema=")[2]).is_file()
    assert str(installed.parent) in run("check", "quickstart.yaml")
    assert "is fine" in run("check", "quickstart.yaml")
    run("demo", "run.iterations=1", "train.warmup_updates=0", "eval.samples=8")
    assert (tmp_path / "runs" / "quickstart" / "summary.json").is_file()
    run("export", "runs/quickstart", "--out", "exported")
    assert (tmp_path / "exported" / "diffrl.json").is_file()
