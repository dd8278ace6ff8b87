"""The package as Python code uses it: the same runs, pictures and scores as by the command line, and exceptions."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import diffrl
from diffrl.cli import main
from diffrl.config.load import make_config
from diffrl.terminal import signals
from reward_models import load_reward
from tests.training.harness import last_checkpoint, rows_of, settings, start, undrawn

ROOT_FREE = "import sys, diffrl; assert not {'torch', 'pydantic', 'PIL'} & set(sys.modules), sorted(sys.modules)"


class Recorder(diffrl.Callback):
    """Writes down what it is told, and answers as it was asked to."""

    def __init__(self, answers=None):
        self.calls, self.answers = [], answers or {}

    def on_start(self, run):
        self.calls.append(("start", run.path.name, run.iteration))

    def on_iteration(self, iteration, metrics):
        self.calls.append(("iteration", iteration, metrics["iteration"]))
        answer = self.answers.get(("iteration", iteration))
        return answer() if callable(answer) else answer

    def on_evaluation(self, iteration, scores):
        (name,) = scores
        self.calls.append(("evaluation", iteration, name))
        answer = self.answers.get(("evaluation", iteration))
        return answer() if callable(answer) else answer

    def on_end(self, run):
        self.calls.append(("end", run.path.name, run.iteration))


@pytest.fixture(scope="module")
def data(random_sd3, tmp_path_factory):
    """Settings of a run whose two iterations are evaluated before and after."""
    directory = tmp_path_factory.mktemp("api")
    return settings(random_sd3, directory, run={"name": "straight"}, track={"trees": None})


@pytest.fixture(scope="module")
def run(data):
    """That run, as the function behind the command line trains it."""
    return diffrl.open_run(start(data)[0])


def train(data, tmp_path, *callbacks, **changes):
    config = make_config(data | {"run": data["run"] | {"dir": str(tmp_path)} | changes})
    with undrawn():
        return diffrl.train(config, callbacks, quiet=True)


def kept(run):
    """All of a run that does not depend on the machine: metrics and the last checkpoint."""
    step, tensors, state = last_checkpoint(run.path)
    return rows_of(run.path), step, tensors, {k: v for k, v in state.items() if k != "config"}


def test_importing_it_imports_nothing_heavy_and_every_name_is_there():
    subprocess.run([sys.executable, "-c", ROOT_FREE], check=True)
    assert all(getattr(diffrl, name) is not None for name in diffrl.__all__)
    assert set(diffrl.__all__) <= set(dir(diffrl)) and callable(diffrl.score)
    with pytest.raises(AttributeError, match="trian"):
        diffrl.trian  # noqa: B018
    (stub,) = [node for node in ast.parse(Path(diffrl.__file__).read_text()).body if isinstance(node, ast.If)]
    assert {alias.name for node in stub.body for alias in node.names} == set(diffrl.__all__)


def test_it_trains_the_same_run_tells_of_it_and_leaves_the_generators_alone(data, run, tmp_path):
    recorder = Recorder()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    again = train(data, tmp_path, recorder)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    assert kept(again) == kept(run)
    name = data["eval"]["rewards"][0]["name"]
    assert recorder.calls == [
        ("start", "straight", 0),
        ("evaluation", 0, name),
        ("iteration", 1, 1),
        ("iteration", 2, 2),
        ("evaluation", 2, name),
        ("end", "straight", 2),
    ]


def test_a_thread_trains_the_same_run(data, run, tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(train(data, tmp_path)))
    thread.start()
    thread.join()
    assert kept(found[0]) == kept(run)


def test_a_run_shows_its_metrics_and_samples(run):
    rows = run.metrics()
    assert [row["iteration"] for row in rows] == [0, 1, 2] and run.iteration == 2
    samples = run.samples()
    name = run.config.eval.rewards[0].key
    assert len(samples) == 5 and {sample.iteration for sample in samples} == {2}
    assert sum(sample.scores[name] for sample in samples) / 5 == pytest.approx(rows[2][f"held_out/{name}"], rel=1e-5)
    image = samples[0].image()
    assert isinstance(image, Image.Image) and samples[0].prompt
    assert np.asarray(image)[..., 0].mean() / 255 == pytest.approx(samples[0].scores[name], rel=1e-5)
    assert 3 <= sum(sample.has_image for sample in samples) < 5
    bare = next(sample for sample in samples if not sample.has_image)
    with pytest.raises(diffrl.DiffrlError, match="without an image"):
        bare.image()
    before, trained = run.samples(iteration=0), run.samples("train")
    assert [s.prompt for s in before] == [s.prompt for s in samples] and before[0].scores != samples[0].scores
    assert len(trained) == 6 and any(sample.advantage for sample in trained) and run.samples(iteration=7) == []


def test_a_callback_ends_a_run_that_can_go_on(data, run, tmp_path):
    recorder = Recorder({("evaluation", 0): True})
    stopped = train(data, tmp_path, recorder)
    assert stopped.iteration == 0 and recorder.calls[-1] == ("end", "straight", 0)
    assert "A callback asked the run to stop" in (stopped.path / "log.txt").read_text()
    with undrawn():
        assert kept(diffrl.resume(stopped, quiet=True)) == kept(run)


def test_what_a_callback_raises_comes_after_a_checkpoint(data, tmp_path):
    class MyError(Exception):
        pass

    def fail():
        raise MyError("of my own")

    recorder = Recorder({("iteration", 1): fail})
    with pytest.raises(MyError, match="of my own"):
        train(data, tmp_path, recorder)
    assert recorder.calls[-1] == ("iteration", 1, 1)
    stopped = diffrl.open_run(tmp_path / "straight")
    assert last_checkpoint(stopped.path)[0] == 1 and "Failed: MyError" in (stopped.path / "log.txt").read_text()


def test_ctrl_c_is_a_keyboard_interrupt_after_a_checkpoint(data, tmp_path, capsys):
    reader, writer = os.pipe()  # as an event loop has one, a notebook's among them
    os.set_blocking(writer, False)
    own = signal.set_wakeup_fd(writer)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    recorder = Recorder({("iteration", 1): lambda: os.kill(os.getpid(), signal.SIGINT)})
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path, recorder)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert last_checkpoint(tmp_path / "straight")[0] == 1 and recorder.calls[-1][0] == "end"
    assert "finishes what it is at" in capsys.readouterr().err
    assert signal.set_wakeup_fd(own) == writer
    os.close(reader), os.close(writer)


def test_a_second_ctrl_c_ends_it_at_once_and_leaves_the_process_alone(data, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on")

    monkeypatch.setattr(signals, "TWICE", 0.0)
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path, Recorder({("iteration", 1): twice}))
    assert not (tmp_path / "straight/checkpoints").exists() and threading.active_count() <= threads
    assert "the run ends at once" in (tmp_path / "straight/log.txt").read_text()


@pytest.mark.parametrize(
    ("given", "said"), [(Recorder, "Got the class Recorder. Make an instance"), (print, "Subclass diffrl.Callback")]
)
def test_what_is_no_callback_is_refused_before_anything_is_loaded(data, tmp_path, given, said):
    with pytest.raises(diffrl.ConfigError, match=said):
        train(data, tmp_path, given)
    assert not (tmp_path / "straight").exists()


def test_an_answer_that_is_none_is_an_error_of_the_callback(data, tmp_path):
    with pytest.raises(diffrl.DiffrlError, match="Recorder.on_evaluation must return True"):
        train(data, tmp_path, Recorder({("evaluation", 0): 0.5}))


def test_it_draws_what_the_command_writes(run, tmp_path):
    out = tmp_path / "drawn"
    command = ["generate", "--run", str(run.path), "--out", str(out), "--per-prompt", "2", "--seed", "7"]
    with pytest.raises(SystemExit) as end:
        main([*command, "--prompt", "a red circle", "--prompt", "two blue squares"])
    assert not end.value.code
    images = diffrl.generate(run, ["a red circle", "two blue squares"], per_prompt=2, seed=7, batch=3)
    files = [out / f"{group:04d}-{number}.png" for group in range(2) for number in range(2)]
    assert [image.tobytes() for image in images] == [Image.open(file).tobytes() for file in files]
    (one,) = diffrl.generate(run.config.model.path, "a red circle", seed=7, steps=3)
    assert one.size == images[0].size and one.tobytes() != images[0].tobytes()


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "prompts must be one text or several"),
        ("a red circle", {"guidance_scale": 0.5}, "guidance_scale must be >= 1"),
        ("a red circle", {"height": 32}, "a run has its own"),
    ],
)
def test_what_cannot_be_drawn_is_refused(run, given, options, said):
    with pytest.raises(diffrl.ConfigError, match=said):
        diffrl.generate(run, given, **options)


def test_it_scores_images_of_every_form(tmp_path):
    red = Image.new("RGB", (32, 32), "red")
    red.save(tmp_path / "red.png")
    own = load_reward("tests.training.scorers:Brightness")
    rows = diffrl.score([tmp_path / "red.png", red, np.zeros((32, 32, 3), np.uint8)], "a red square", ["shapes", own])
    assert [row["brightness"] for row in rows] == [1.0, 1.0, 0.0] and rows[0]["shapes"] == rows[1]["shapes"]
    assert all(0 <= row["shapes"] <= 1 and row["prompt"] == "a red square" and row["error"] is None for row in rows)
    (alone,) = diffrl.score([red], rewards="mean=sharpness")
    assert alone["mean"] == 0.0 and alone["prompt"] is None


@pytest.mark.parametrize(
    ("images", "options", "said"),
    [
        ("red.png", {"rewards": "sharpness"}, "images must be a list"),
        ([], {}, "at least one reward"),
        (["absent.png"], {"rewards": ["sharpness"]}, "There is no file absent.png"),
        (["absent.png"], {"rewards": ["shapes"]}, "prompts must be given for the reward shapes"),
        (["absent.png"], {"rewards": ["shapes"], "prompts": ["a", "b"]}, "one entry an image. Got 2 for 1"),
    ],
)
def test_what_cannot_be_scored_is_one_error(images, options, said):
    with pytest.raises(diffrl.DiffrlError) as raised:
        diffrl.score(images, **options)
    assert said in str(raised.value)


def test_a_configuration_takes_values_or_texts(tmp_path):
    path = "configs/quickstart.yaml"
    values = {"run.iterations": 30, "run.dir": tmp_path, "rewards.0.weight": 0.25, "eval.rewards": [{"name": "shapes"}]}
    texts = [f"run.dir={tmp_path}", "run.iterations=30", "rewards.0.weight=0.25", "eval.rewards=[{name: shapes}]"]
    assert diffrl.load_config(path, values) == diffrl.load_config(path, texts)
    for wrong, said in (
        ("run.iterations=3", "overrides must be a list"),
        ({"run.iteratons": 3}, "run.iteratons is not a known key"),
        ({"rewards.5.weight": 1.0}, "a list of 2 entries"),
        ({"run.iterations": "3"}, "must be a whole number"),
    ):
        with pytest.raises(diffrl.ConfigError) as raised:
            diffrl.load_config(path, wrong)
        assert said in str(raised.value)


def test_a_path_is_no_configuration(tmp_path):
    with pytest.raises(diffrl.ConfigError, match="diffrl.load_config"):
        diffrl.train("configs/quickstart.yaml")
    with pytest.raises(diffrl.ConfigError, match="A run is a directory"):
        diffrl.open_run(tmp_path)
