"""What lies in the current folder is imported only where a name asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffrl.registry import OBJECTIVES, resolve
from reward_models.registry import factory_of

ROOT = Path(__file__).parents[2]
PLANTED = "open('ran', 'a').write(__name__)\nraise ImportError(__name__)\n"
PROGRAM = "import os, sys; os.rmdir(os.getcwd()); from {} import main; main(sys.argv[1:])"


@pytest.mark.parametrize(
    ("find", "name"),
    [
        (factory_of, "own_package_{}.inner"),
        (lambda name: resolve("objective.kind", OBJECTIVES, name), "own_module_{}"),
    ],
)
def test_a_component_is_found_beside_the_user_and_so_is_what_it_imports_later(tmp_path, monkeypatch, find, name):
    name = name.format(len(str(tmp_path)) + id(find))  # another module each time: Python imports one once
    file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    later = f"later_{id(file)}"
    file.write_text(f"def made():\n    import {later}\n    return {later}.NUMBER\n")
    (tmp_path / f"{later}.py").write_text("NUMBER = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert find(f"{name}:made")() == 7


def test_what_lies_in_the_folder_is_left_alone_when_a_component_is_found_elsewhere(tmp_path, monkeypatch):
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    elsewhere.mkdir()
    here.mkdir()
    (elsewhere / "own_elsewhere.py").write_text("try:\n    import planted_one\nexcept ImportError:\n    made = int\n")
    (here / "planted_one.py").write_text(PLANTED)
    (here / "own_elsewhere.py").write_text(PLANTED)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), str(elsewhere)])
    assert factory_of("own_elsewhere:made") is int and not (here / "ran").exists()
    assert str(here) not in sys.path


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [["-c", "from diffrl.cli import main; main(['rewards', 'list'])"], ["-m", "reward_models", "rewards", "list"]],
)
def test_no_command_imports_what_lies_where_it_is_started(tmp_path, program):
    for name in ("brotli", "typer", "rich", "yaml", "torch"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    if program[0] == "-c":
        program = ["-P", *program]  # as the installed command: Python adds the folder for -c alone
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr and not (tmp_path / "ran").exists()


@pytest.mark.long
def test_a_folder_that_was_removed_is_one_sentence(tmp_path, package="reward_models.cli"):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = [sys.executable, "-c", PROGRAM.format(package), "rewards", "list"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=gone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Change to another folder" in done.stderr and "Traceback" not in done.stderr
