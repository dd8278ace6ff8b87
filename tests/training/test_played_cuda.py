"""What asks for a GPU runs on one that the CPU plays: the same run as on the CPU, and each thread on its device."""

import json
import os

import pytest
import torch
from PIL import Image

from diffrl.allocator import VARIABLES
from diffrl.cli import main
from diffrl.run.directory import environment
from diffrl.training.loop import Trainer
from tests.played_cuda import PlayedStream, played_cuda
from tests.run.test_resume import crashing
from tests.training.harness import BRIGHTNESS, GREEN, assert_same_run, go_on, rows_of, settings, start, write_config

pytest.importorskip("bitsandbytes")


def eight_bit_run(pipeline, directory, device):
    """Adam in 8 bits (of what has 4096 weights), and a reward on the other GPU."""
    data = settings(
        pipeline,
        directory,
        model={"family": "sd3", "path": str(pipeline), "device": device},
        rewards=[{"name": BRIGHTNESS}, {"name": GREEN, "device": "cuda:1" if device == "cuda" else None}],
        train={"optimizer": "adamw_8bit"},
    )
    data["run"] |= {"iterations": 3, "checkpoint_every": 1}
    return data


@pytest.fixture(scope="module")
def played(random_sd3, tmp_path_factory):
    """A run on GPUs that the CPU plays, and what was called there."""
    with played_cuda() as cuda:
        run, _ = start(eight_bit_run(random_sd3, tmp_path_factory.mktemp("gpu"), "cuda"))
    return run, cuda


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
    ],
)
def test_segments_grow_unless_the_user_says_otherwise(monkeypatch, theirs, expected):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", os.environ | theirs)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert {name: os.environ[name] for name in VARIABLES if name in os.environ} == (theirs or {VARIABLES[0]: expected})
    assert environment(torch.device("cpu"), "float32", 1)["allocator"] is None
    with played_cuda():
        assert environment(torch.device("cuda"), "float32", 1)["allocator"] == expected


def test_it_is_the_run_of_the_cpu(played, random_sd3, tmp_path):
    run, _ = played
    assert rows_of(run) == rows_of(start(eight_bit_run(random_sd3, tmp_path, "cpu"))[0])
    environment = json.loads((run / "environment.json").read_text())
    assert (environment["device"], environment["gpu"], environment["cuda"]) == ("cuda", "NVIDIA X", "13.0")


def test_it_resumes(played, random_sd3, tmp_path):
    with played_cuda():
        with crashing(Trainer, "iterate", 3):
            start(eight_bit_run(random_sd3, tmp_path, "cuda"))
        go_on(tmp_path / "run")
    assert_same_run(tmp_path / "run", played[0])


@pytest.mark.parametrize("index", [0, 1])
def test_rewards_have_their_device_and_a_stream_of_their_own(played, index):
    first, second, *later = played[1].of_thread(f"reward-cuda:{index}")
    device = torch.device("cuda", index)
    assert first == ["set_device", device]
    name, stream, before = second
    assert name == "wait_stream" and stream.device == device and before.device == "default"
    assert later and all(call == ["synchronize", stream] for call in later)  # each result is there when it is given


def test_the_clock_waits_for_the_rollout_alone(played):
    waited = played[1].of_thread("MainThread")
    assert waited and all(call[0] == "synchronize" and isinstance(call[1], PlayedStream) for call in waited)


def test_commands_take_a_gpu(random_sd3, tmp_path, capsys):
    config = write_config(eight_bit_run(random_sd3, tmp_path / "run", "cuda"), tmp_path / "config.yaml")
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    commands = {
        "device       cuda": ["check", str(config)],
        "sharpness": ["score", str(tmp_path / "a.png"), "--reward", "sharpness", "--device", "cuda:1"],
    }
    with played_cuda():
        for said, command in commands.items():
            with pytest.raises(SystemExit) as end:
                main(command)
            assert not end.value.code and said in capsys.readouterr().out
        with pytest.raises(SystemExit) as end:
            main([*commands["sharpness"][:-1], "cuda:2"])
    assert end.value.code == 2 and "no device cuda:2: 2 CUDA devices" in " ".join(capsys.readouterr().err.split())
