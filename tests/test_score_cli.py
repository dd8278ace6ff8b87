"""`diffrl score`: what diffrl itself wrote is scored as it is, and pictures can be drawn first."""

from __future__ import annotations

import json
import math

import pytest
import torch

from diffrl.cli import main
from diffrl.tracking.store import SampleStore, StoredSample
from reward_models import RewardBatch, load_reward
from reward_models.self_test import drawing


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def score(capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["score", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def sample(iteration: int, root: int, picture: torch.Tensor | None, stage: str = "eval", **more) -> StoredSample:
    return StoredSample(stage, iteration, 0, root, 7, "a red circle", picture=picture, **more)


@pytest.fixture
def run_dir(tmp_path):
    """A run's samples, with the rewards that training gave them."""
    scorer = load_reward("shapes")
    pictures = [drawing(color, shape, side=48) for color, shape in (("red", "circle"), ("red", "square"))]
    values = scorer(RewardBatch(torch.stack(pictures), ["a red circle"] * 2)).raw.tolist()
    assert values[0] != values[1]
    good, poor = ({"shapes": value} for value in values)
    with SampleStore(tmp_path / "run") as store:
        store.write([sample(0, 0, pictures[0], rewards=good), sample(0, 1, pictures[1], rewards=poor)])
        store.write([sample(40, 0, pictures[0], rewards=good, metadata={"target": "x"}), sample(40, 1, None)])
        store.write([sample(41, 3, pictures[1], stage="train", rewards=poor, path=(0, 1))])
    return tmp_path / "run"


def test_a_run_is_scored_as_training_scored_it(score, run_dir, tmp_path):
    out, before = tmp_path / "s.jsonl", (run_dir / "samples.sqlite").read_bytes()
    code, text, _ = score(run_dir, "--reward", "shapes", "--reward", "diversity", "--out", out)
    assert code == 0 and "1 stored without an image" in text
    with SampleStore.open_readonly(run_dir) as store:
        stored = [one for one in store.read() if one.file is not None]
    made = rows(out)
    assert [row["file"] for row in made] == [str(run_dir / one.file) for one in stored]
    for row, one in zip(made, stored, strict=True):
        assert row["rewards"]["shapes"]["raw"] == one.rewards["shapes"] and row["prompt"] == one.prompt
        assert row["sample"]["stage"] == one.stage and row["sample"]["path"] == ".".join(map(str, one.path))
    assert made[2]["metadata"] == {"target": "x"}
    first, second = (row["rewards"]["diversity"]["raw"] for row in made[:2])
    assert first == second > 0  # one group of two; the others are alone in theirs
    with_one = [row["rewards"]["diversity"] for row in made[2:]]
    alone = load_reward("diversity")(RewardBatch(drawing("red", "circle", side=48)[None], ["p"], (), None, [0]))
    assert [(one["ok"], one["error"]) for one in with_one] == [(bool(alone.ok[0]), alone.errors[0])] * 2
    assert (run_dir / "samples.sqlite").read_bytes() == before


def test_stage_and_iteration_choose(score, run_dir, tmp_path):
    for options, expected in (
        (["--stage", "train"], [41]),
        (["--iteration", 40], [40]),
        (["--iteration", 0, "--iteration", 41], [0, 0, 41]),
        (["--stage", "eval", "--limit", 1], [0]),
    ):
        assert score(run_dir, "--reward", "shapes", *options, "--out", tmp_path / "s.jsonl")[0] == 0
        assert [row["sample"]["iteration"] for row in rows(tmp_path / "s.jsonl")] == expected
    code, _, message = score(run_dir, "--reward", "shapes", "--stage", "trian")
    assert code == 2 and "eval, iterations 0 to 40; train, iterations 41 to 41" in message


def test_a_picture_that_is_gone_is_a_row_that_failed(score, run_dir):
    next(run_dir.glob("samples/train-*/*.webp")).unlink()
    summary = json.loads(score(run_dir, "--reward", "shapes", "--json")[1])
    assert summary["rewards"]["shapes"]["failed"] == 1 and summary["rewards"]["shapes"]["n"] == 3


def test_pictures_are_drawn_first_and_can_be_scored_again(score, random_sd3, tmp_path):
    images, out = tmp_path / "images", tmp_path / "s.jsonl"
    command = ["--pipeline", random_sd3, "--images", images, "--prompts", "shapes:tune", "--limit", 3]
    command += ["--per-prompt", 2, "--steps", 2, "--seed", 5]
    code, text, _ = score(*command, "--reward", "shapes", "--reward", "diversity", "--out", out)
    assert code == 0 and "6 images in" in text
    made = rows(out)
    index = rows(images / "samples.jsonl")
    assert [row["prompt"] for row in made] == [row["prompt"] for row in index] and len(made) == 6
    assert [row["sample"] for row in made] == [{"seed": 5, "number": number} for _ in range(3) for number in range(2)]
    pairs = [row["rewards"]["diversity"]["raw"] for row in made]
    assert pairs[0::2] == pairs[1::2] and all(math.isfinite(value) and value > 0 for value in pairs)
    summary = json.loads(score(images, "--reward", "shapes", "--reward", "diversity", "--json")[1])
    assert summary["rewards"]["shapes"]["cached"] == 6 and summary["left_out"] == {"not in samples.jsonl": 1}
    code, _, message = score(*command, "--images", tmp_path / "new", "--reward", "shaps")
    assert code == 2 and "Did you mean" in message and not (tmp_path / "new").exists()
    code, _, message = score(*command, "--reward", "shapes")
    assert code == 2 and "--images must be a new or empty folder" in message and f"diffrl score {images}" in message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pipeline", "x"], "go together"),
        (["IN", "--pipeline", "x", "--images", "y"], "and not both"),
        ([], "diffrl score --pipeline generates some"),
    ],
)
def test_what_is_drawn_and_what_is_scored_is_one_thing(score, tmp_path, arguments, expected):
    given = [tmp_path if argument == "IN" else argument for argument in arguments]
    code, _, message = score(*given, "--reward", "shapes")
    assert code == 2 and expected in message and "Traceback" not in message
