"""`python -m reward_models` as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reward_models.registry import SCORERS

PROGRAM = """
import sys
from reward_models.cli import main
try:
    main(sys.argv[1:])
finally:
    loaded = {name.partition(".")[0] for name in sys.modules}
    print(sorted(loaded & {"diffrl", "accelerate", "diffusers", "transformers"}))
"""


@pytest.mark.long
def test_it_imports_neither_diffrl_nor_accelerate(pictures, tmp_path):
    command = ["--reward", "shapes", "--reward", "sharpness", "--out", "s.csv", "--plot", "p.png"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "score", str(pictures), *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path.cwd()), "XDG_CACHE_HOME": str(tmp_path), "PATH": ""},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]" and "10 scores made" in done.stdout
    assert done.stderr == ""  # no progress bar where there is no terminal


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom reward_models.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numpy', 'yaml', 'PIL', 'sqlite3'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "rewards" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "`score` takes files or folders"),
        (["IN"], "At least one reward"),
        (["IN", "--reward", "shaps"], "Did you mean 'shapes'"),
        (["IN", "--reward", "total=shapes"], "weighted sum"),
        (["IN", "--reward", "two words=sharpness"], "label: String should match pattern"),
        (["IN", "--reward", "shapes", "--reward", "shapes"], "the same label"),
        (["IN", "--reward", "sharpness", "--option", "no_such=1"], "these options: no_such. It takes "),
        (["IN", "--reward", "shapes", "--option", "other.color_error=1"], "KEY=VALUE"),
        (["IN", "--reward", "shapes", "--option", "color_error=[1"], "cannot be read as YAML"),
        (["IN", "--reward", "shapes", "--reward", "sharpness", "--option", "x=1"], "whose it is"),
        (["IN", "--reward", "shapes", "--device", "gpu"], "auto, cpu, cuda or cuda:NUMBER"),
        (["IN", "--reward", "shapes", "--device", "cuda:77"], "no device cuda:77"),
        (["IN", "--reward", "shapes", "--dtype", "float16"], "--dtype is for rewards with weights"),
        (["IN", "--reward", "shapes", "--media", "sound"], "--media is image or video"),
        (["IN", "--reward", "shapes", "--prompt", "x", "--prompts", "y.txt"], "Give one of them"),
    ],
)
def test_a_mistake_is_one_sentence(refused, pictures, arguments, expected):
    assert expected in refused(*[pictures if argument == "IN" else argument for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("rewards check", "At least one reward"),
        ("serve --reward shapes --server-option max_samples=0", "max_samples"),
        ("pictures --reward shapes", "takes a command: score, serve, rewards. Got 'pictures'"),
    ],
)
def test_a_mistake_with_the_other_commands_is_one_sentence(command_refused, arguments, expected):
    assert expected in command_refused(*arguments.split())


def test_options_are_values_and_belong_to_labels(score, pictures, rows, tmp_path):
    rewards = ["--reward", "easy=shapes_strict", "--reward", "hard=shapes_strict", "--reward", "shapes"]
    options = ["--option", "easy.color_fit=0e0", "--option", "hard.max_radius=0.01", "--option", "shapes.outline=0.9"]
    assert score(pictures, *rewards, *options, "--out", tmp_path / "s.jsonl").code == 0
    made = rows(tmp_path / "s.jsonl")
    assert [row["rewards"]["easy"]["raw"] for row in made] == [1, 1, 1, 1, 1]  # also the one of another colour
    assert sum(row["rewards"]["hard"]["raw"] for row in made) == 0
    assert made[0]["rewards"]["easy"]["scorer"] == "shapes_strict"


def test_the_list_shows_every_reward_and_what_it_lacks(command, monkeypatch):
    entries = {entry["name"]: entry for entry in json.loads(command("rewards", "list", "--json").out)}
    assert set(entries) == set(SCORERS)
    assert entries["shapes"]["range"] == [0, 1] and entries["jpeg_compressibility"]["range"][0] is None
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        text = command("rewards", "list").out
        assert all(name in text for name in SCORERS) and max(map(len, text.splitlines())) <= int(width)

    class Hidden:
        """An installation without open_clip, and a module that imports it at once."""

        def find_spec(self, name, path=None, target=None):
            if name == "reward_models.images.shapes":
                raise ModuleNotFoundError("No module named 'open_clip'", name="open_clip")
            return None

    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "reward_models.images.shapes")
    entries = {entry["name"]: entry for entry in json.loads(command("rewards", "list", "--json").out)}
    assert entries["shapes"]["install"] == "diffrl[clip]" and "open_clip" in entries["shapes"]["problem"]
    assert "pip install 'diffrl[clip]'" in command("rewards", "list").out


def test_the_self_test_tells_a_working_reward_from_a_dead_one(command, tmp_path, monkeypatch):
    good = command("rewards", "self-test", "shapes", "--option", "outline=0.9")
    assert good.code == 0 and "PASS" in good.out and "a red circle" in good.out
    (tmp_path / "dead.py").write_text(
        "import dataclasses, torch\nfrom reward_models.base import output_of_scores\n"
        "from reward_models.images.shapes import ShapesScorer\n"
        "class Dead(ShapesScorer):\n"
        "    def __call__(self, batch):\n        return output_of_scores(torch.zeros(len(batch)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    bad = command("rewards", "self-test", "dead:Dead")
    assert bad.code == 3 and "FAIL" in bad.out and "All scores are 0" in bad.out


def test_the_contract_is_checked(command, tmp_path, monkeypatch):
    assert command("rewards", "check", "sharpness").code == 0
    (tmp_path / "rude.py").write_text(
        "from reward_models.images.shapes import ShapesScorer\n"
        "class Rude(ShapesScorer):\n    def to(self, device):\n        return type(self)()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    done = command("rewards", "check", "rude:Rude")
    assert done.code == 3 and "must return the scorer itself" in done.out
    assert "rude:Rude returns Rude. End it with `return self`" in command("rewards", "self-test", "rude:Rude").err
    (tmp_path / "wild.py").write_text(
        "from reward_models.images.shapes import ShapesScorer\n"
        "class Wild(ShapesScorer):\n    def __call__(self, batch):\n        return {}[batch.media.shape[0]]\n"
        "class Stuck(ShapesScorer):\n    def to(self, device):\n        raise KeyError('no such place')\n"
    )
    done = command("rewards", "check", "wild:Wild")
    assert done.code == 3 and "raised KeyError" in done.out
    assert "cannot be moved to cpu: KeyError: 'no such place'" in command("rewards", "check", "wild:Stuck").err
    assert "could not be scored: KeyError: 1" in command("rewards", "self-test", "wild:Wild").out


def test_the_server_gets_what_the_command_says(command, tmp_path, monkeypatch):
    served = {}

    def serve(rewards, **options):
        served.update(rewards=rewards, **options)

    monkeypatch.setattr("reward_models.serving.server.serve", serve)
    (tmp_path / "token").write_text("a-token-of-tests")
    rewards = ["--reward", "easy=shapes", "--reward", "sharpness", "--option", "easy.outline=0.5"]
    address = ["--host", "::1", "--port", 0, "--token-file", tmp_path / "token", "--allow-anonymous"]
    assert command("serve", *rewards, *address, "--server-option", "max_batch=7").code == 0
    assert list(served["rewards"]) == ["easy", "sharpness"] and served["rewards"]["easy"].tolerances.outline == 0.5
    assert (served["host"], served["port"], served["token"], served["allow_anonymous"]) == ("::1", 0, None, True)
    assert served["token_file"] == tmp_path / "token" and served["max_batch"] == 7


@pytest.mark.long
def test_served_rewards_score_as_they_do_here(score, pictures, tmp_path):
    """Scores over HTTP are the same numbers, and what the cache cannot know of a server is said."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "reward_models", "serve", "--reward", "easy=shapes", "--option", "outline=0.5"]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        words = server.stdout.readline().replace(";", " ").split()
        assert words[:3] == ["Serving", "easy", "at"], server.communicate()
        options = ["--option", f"remote.url={words[3]}", "--option", "remote.reward=easy", "--option", "remote.wait=60"]
        rewards = ["--reward", "remote", "--reward", "shapes", "--option", "shapes.outline=0.5"]
        made = [score(pictures, *rewards, *options, "--json").summary["rewards"] for _ in range(2)]
        assert made[0]["remote"]["mean"] == made[0]["shapes"]["mean"] > 0.5
        assert [one["remote"]["cached"] for one in made] == [0, 5]
        assert "cannot be seen from here" in score(pictures, *rewards, *options).out
    finally:
        server.send_signal(signal.SIGINT)
        told = server.communicate(timeout=120)[1]
    assert server.returncode == 0 and "Traceback" not in told
