"""Scores are those of the scorers themselves, whatever the batches; what fails, fails alone."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from reward_models import RewardBatch, load_reward
from reward_models.media import from_pil, save_media, to_pil
from reward_models.self_test import clip, drawing, noise


def directly(name: str, path, prompt: str = "", **options) -> float:
    """One image, read by PIL and scored alone by the scorer itself."""
    with Image.open(path) as image:
        return float(load_reward(name, **options)(RewardBatch(from_pil(image)[None], [prompt])).raw[0])


def test_scores_are_those_of_the_scorers(score, pictures, rows, tmp_path):
    names = ["shapes", "shapes_strict", "jpeg_compressibility", "sharpness"]
    wanted = list(itertools.chain.from_iterable(("--reward", name) for name in names))
    done = score(pictures, *wanted, "--batch-size", 2, "--out", tmp_path / "s.jsonl", "--no-cache")
    assert done.code == 0, done.err
    made = rows(tmp_path / "s.jsonl")
    assert [row["file"] for row in made] == [str(pictures / f"{number}.png") for number in range(5)]
    for row in made:
        prompt = (pictures / row["file"]).with_suffix(".txt").read_text().strip()
        assert row["prompt"] == prompt
        for name in names:
            assert row["rewards"][name]["raw"] == directly(name, row["file"], prompt)
            said = {"ok": True, "error": None, "scorer": name, "version": load_reward(name).spec.version}
            assert row["rewards"][name] == row["rewards"][name] | said
    assert [row["rewards"]["shapes_strict"]["raw"] for row in made][3] == 0
    assert set(made[0]["rewards"]["shapes"]["parts"]) >= {"count", "colour", "binding"}


def test_broken_files_count_and_with_strict_they_are_no_success(score, pictures, tmp_path):
    (pictures / "6.jpg").write_text("no picture at all")
    (pictures / "8.png").symlink_to(tmp_path / "gone.png")
    command = [pictures, "--prompt", "a red circle", "--reward", "shapes", "--reward", "sharpness"]
    done = score(*command)
    assert done.code == 0 and "shapes failed for 2 of 7 files" in done.out
    assert score(*command, "--strict").code == 3
    assert score(*command, "--strict", "--limit", 5).code == 0


def test_a_sample_that_a_scorer_cannot_judge_fails_for_it_alone(score, pictures):
    command = [pictures, "--prompt", "nonsense", "--json", "--reward", "shapes"]
    done = score(*command, "--reward", "sharpness")
    assert done.code == 0
    assert done.summary["rewards"]["shapes"]["failed"] == 5 and done.summary["rewards"]["shapes"]["mean"] is None
    assert done.summary["rewards"]["sharpness"]["failed"] == 0 and done.summary["failed_files"] == 5
    done = score(*command, "--reward", "shapes_strict")  # nothing at all came of it
    assert done.code == 3 and done.summary["rewards"]["shapes_strict"]["failed"] == 5


def test_an_image_without_a_prompt_fails_alone_and_a_reward_without_any_is_refused(
    refused, score, pictures, counting, tmp_path
):
    (pictures / "2.txt").unlink()
    (pictures / "4.txt").write_text("  \n")
    own = counting("mine_prompts", uses_prompt=False)
    command = [pictures, "--json", "--reward", own, "--option", f"{own}.log={tmp_path / 'log'}", "--reward", "shapes"]
    done = score(*command).summary
    assert done["rewards"]["shapes"]["failed"] == 2 and done["rewards"][own]["failed"] == 0
    errors = done["rewards"]["shapes"]["errors"]
    assert [error["file"] for error in errors] == [str(pictures / name) for name in ("2.png", "4.png")]
    assert done["prompts_from"] == {".txt": 3, "nowhere": 2}
    (tmp_path / "log.txt").unlink()
    for caption in pictures.glob("*.txt"):
        caption.unlink()
    assert "No prompt was found for" in refused(*command)
    assert not (tmp_path / "log.txt").exists()


def test_missing_metadata_is_told_before_anything_is_scored(refused, pictures, tmp_path):
    (tmp_path / "needs.py").write_text(
        "from reward_models.images.shapes import *\nimport dataclasses\nclass Needs(ShapesScorer):\n"
        "    spec = dataclasses.replace(ShapesScorer.spec, requires=('target',))\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        assert "needs target in the metadata" in refused(pictures, "--reward", "needs:Needs")
    finally:
        sys.path.remove(str(tmp_path))


def test_videos_go_to_video_rewards(refused, score, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    moving = clip("red", "circle")[:, :, ::4, ::4].contiguous()
    save_media(moving, folder / "clip.webp", 8.0)
    to_pil(drawing("red", "circle", side=64)).save(folder / "still.webp", lossless=True)
    command = [folder, "--prompt", "a red circle moving right"]
    message = refused(*command, "--reward", "sharpness", "--media", "video")
    assert "clip.webp is a video" in message and "video_mean" in message
    assert "still.webp is a still" in refused(*command, "--reward", "moving_shapes", "--media", "image")
    done = score(*command, "--reward", "sharpness", "--reward", "moving_shapes", "--json")
    assert [(row["n"], row["failed"]) for row in done.summary["rewards"].values()] == [(1, 1), (1, 1)]
    done = score(*command, "--reward", "moving_shapes", "--media", "video", "--json")
    expected = load_reward("moving_shapes")(RewardBatch(moving[None], [command[2]], (), 8.0))
    assert done.summary["rewards"]["moving_shapes"]["mean"] == float(expected.raw[0])
    done = score(*command, "--reward", "sharpness", "--media", "image", "--json")
    assert done.summary["files"] == 1 and done.summary["left_out"] == {"not an image": 1}


def test_groups_are_compared_whole(score, tmp_path, rows):
    folder = tmp_path / "groups"
    folder.mkdir()
    made = {}
    for number, prompt in enumerate(["one", "two", "one", "one", "two", "single"]):
        made[number] = noise(12, seed=number)
        to_pil(made[number]).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(prompt)
    (folder / "7.png").write_text("broken")
    (folder / "7.txt").write_text("one")
    command = [folder, "--reward", "diversity", "--batch-size", "2", "--out", tmp_path / "s.jsonl"]
    assert score(*command).code == 0
    found = {row["file"][-5]: row["rewards"]["diversity"] for row in rows(tmp_path / "s.jsonl")}
    for members in ([0, 2, 3], [1, 4]):
        batch = RewardBatch(torch.stack([made[i] for i in members]), ["p"] * len(members), (), None, [0] * len(members))
        expected = load_reward("diversity")(batch).raw.tolist()
        assert [found[str(i)]["raw"] for i in members] == pytest.approx(expected, rel=1e-6)
    assert found["7"]["ok"] is False
    again = score(*command, "--json").summary["rewards"]["diversity"]
    assert again["cached"] >= 2  # the whole groups; the one with a broken member is compared again
    to_pil(noise(13)).save(folder / "8.png")
    (folder / "8.txt").write_text("two")
    score(*command)
    found = {row["file"][-5]: row["rewards"]["diversity"] for row in rows(tmp_path / "s.jsonl")}
    assert "different sizes" in found["1"]["error"] and found["0"]["ok"]


def test_edits_are_compared_with_those_of_the_same_image(score, tmp_path, rows):
    """One instruction for two images: two groups, as in training."""
    folder = tmp_path / "edits"
    folder.mkdir()
    made = {name: noise(12, seed=number) for number, name in enumerate(["a-0", "a-1", "b-0", "b-1"])}
    lines = []
    for name, picture in made.items():
        to_pil(picture).save(folder / f"{name}.png")
        lines.append({"file_name": f"{name}.png", "text": "make it red", "source": f"../{name[0]}.png"})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score(folder, "--reward", "diversity", "--out", tmp_path / "s.jsonl").code == 0
    found = {row["file"][-7:-4]: row["rewards"]["diversity"]["raw"] for row in rows(tmp_path / "s.jsonl")}
    for members in (["a-0", "a-1"], ["b-0", "b-1"]):
        batch = RewardBatch(torch.stack([made[i] for i in members]), ["p"] * 2)
        expected = load_reward("diversity")(batch).raw.tolist()
        assert [found[i] for i in members] == pytest.approx(expected, rel=1e-6)


def test_a_group_too_large_to_hold_is_refused(refused, score, tmp_path, monkeypatch):
    for number in range(5):
        to_pil(noise(8, seed=number)).save(tmp_path / f"{number}.png")
    monkeypatch.setattr("reward_models.scoring.groups.LARGEST", 4)
    assert "groups of up to 4" in refused(tmp_path, "--reward", "diversity")
    assert score(tmp_path, "--reward", "diversity", "--limit", 4).code == 0


def test_video_files_need_their_package(refused, tmp_path, monkeypatch):
    """What is read in them is tested in tests/files; without PyAV, one sentence before anything is scored."""
    (tmp_path / "b.mp4").write_bytes(b"broken")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "diffrl[video]" in refused(tmp_path, "--prompt", "a red circle moving right", "--reward", "moving_shapes")


def test_equal_samples_are_scored_once(score, pictures, counting, tmp_path):
    for number in range(10, 60):
        (pictures / f"{number}.png").write_bytes((pictures / "0.png").read_bytes())
    name = counting("mine_equal")
    log = tmp_path / "log.txt"
    command = [pictures, "--prompt", "p", "--reward", name, "--option", f"log={tmp_path / 'log'}", "--batch-size", "3"]
    assert score(*command, "--no-cache").code == 0
    assert len(log.read_text().splitlines()) == 5
    assert max(int(line.split()[0]) for line in log.read_text().splitlines()) <= 3


def test_a_recipe_gives_a_weighted_total(score, refused, pictures, rows, tmp_path):
    recipe = {
        "run": {"name": "x"},
        "rewards": [
            {"name": "shapes", "weight": 2, "shift": 0.25, "scale": 0.5, "schedule": [[0, 1.0]], "timeout": 3},
            {"name": "jpeg_compressibility", "label": "small", "weight": -1.0e-1, "batch_size": 2, "device": "cpu"},
            {"name": "sharpness", "weight": 0},
            {"name": "shapes_strict", "options": {"color_fit": 0.99}},
        ],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    (pictures / "broken.png").write_text("x")
    (pictures / "broken.txt").write_text("a red circle")
    assert score(pictures, "--config", path, "--out", tmp_path / "s.jsonl").code == 0
    made = rows(tmp_path / "s.jsonl")
    for row in made[:5]:
        raw = {label: one["raw"] for label, one in row["rewards"].items()}
        assert set(raw) == {"shapes", "small", "sharpness", "shapes_strict"}
        expected = 2 * (raw["shapes"] - 0.25) / 0.5 - 0.1 * raw["small"] + raw["shapes_strict"]
        assert math.isclose(row["total"], expected, rel_tol=1e-6)
    assert made[5]["total"] is None
    for wrong, expected in (
        ({"name": "shapes", "wieght": 1}, "Did you mean 'weight'"),
        ({"name": "shapes", "weight": "much"}, 'weight: Input should be a valid number. Got "much"'),
        ({"name": "shapes", "device": 3}, "rewards.0 of"),
    ):
        path.write_text(json.dumps([wrong]))
        assert expected in refused(pictures, "--config", path)
    path.write_text("[{name: shapes, options: {1: 2}}]")
    assert "options.1" in refused(pictures, "--config", path)


@pytest.mark.parametrize(("own", "given", "expected"), [(3, [], 3), (40, ["--batch-size", 2], 2)])
def test_a_batch_is_as_large_as_the_scorer_says(score, counting, tmp_path, own, given, expected):
    for number in range(12):
        to_pil(noise(8, seed=number)).save(tmp_path / f"{number}.png")
    name = counting(f"mine_sized_{own}")
    with (tmp_path / f"mine_sized_{own}.py").open("a") as stream:
        stream.write(f"import dataclasses\nCounting.spec = dataclasses.replace(Counting.spec, batch_size={own})\n")
    option = ["--option", f"log={tmp_path / 'log'}", "--prompt", "p", "--no-cache"]
    assert score(tmp_path, "--reward", name, *option, *given).code == 0
    sizes = [int(line.split()[0]) for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert max(sizes) == expected and len(sizes) == 12
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps([{"name": name, "options": {"log": str(tmp_path / "other")}, "batch_size": 5}]))
    assert score(tmp_path, "--config", recipe, "--prompt", "p", "--no-cache").code == 0
    assert max(int(line.split()[0]) for line in (tmp_path / "other.txt").read_text().splitlines()) == 5


def test_too_little_memory_is_one_sentence(refused, pictures, counting, tmp_path):
    name = counting("greedy", before="raise RuntimeError('CUDA out of memory. Tried to allocate 7 GiB.')")
    message = refused(pictures, "--reward", name, "--option", f"log={tmp_path / 'log'}", "--batch-size", 2)
    assert "1 sample at once" in message and "--batch-size" in message


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    """A thousand images take 157 MB more than two hundred of them, decoded; held are two windows of 64."""
    program = """
import resource, sys
from reward_models.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    folder = tmp_path / "many"
    folder.mkdir()
    picture = np.zeros((256, 256, 3), np.uint8)
    for number in range(1000):
        picture[0, 0] = divmod(number, 256) + (number % 7,)
        Image.fromarray(picture).save(folder / f"{number:04d}.png", compress_level=1)

    def peak(count: int) -> int:
        command = [sys.executable, "-c", program, "score", str(folder), "--reward", "contrast", "--limit", str(count)]
        command += ["--json", "--batch-size", "16", "--no-cache"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        assert f'"n": {count}' in done.stdout
        return int(done.stdout.rsplit("peak", 1)[1]) * 1024

    assert peak(1000) - peak(200) < 60e6
