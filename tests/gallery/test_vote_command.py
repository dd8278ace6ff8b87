"""`diffrl vote`, from two folders of images to a model: votes by mouse, pairs, DPO."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

import diffrl
from diffrl.data.prompts import load_prompts, read_prompts
from diffrl.errors import ConfigError
from diffrl.gallery.command import take_votes
from diffrl.gallery.request import GalleryRequest
from tests.gallery.made import make_run
from tests.patience import LONG
from tests.training.harness import undrawn

COLOURS = ("red", "blue", "green", "yellow", "black")
PROMPTS = [f"a {colour} {shape}" for colour in COLOURS for shape in ("circle", "square", "triangle", "cross")]


@pytest.mark.browser
@pytest.mark.long
def test_twenty_votes_by_mouse_become_a_model(random_sd3, tmp_path, page):
    for seed in (1, 2):
        (tmp_path / f"seed-{seed}").mkdir()
        images = diffrl.generate(str(random_sd3), PROMPTS, seed=seed, steps=2, device="cpu")
        for number, (prompt, image) in enumerate(zip(PROMPTS, images, strict=True)):
            image.save(tmp_path / f"seed-{seed}" / f"{number:04}-0.png")
            (tmp_path / f"seed-{seed}" / f"{number:04}-0.txt").write_text(prompt)
    command = [sys.executable, "-u", "-m", "diffrl.cli", "vote", "seed-1", "seed-2", "--port", "0", "--no-browser"]
    serving = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        page.goto(re.search(r"http://\S+/vote", serving.stdout.readline())[0])
        for number in range(1, 21):
            page.wait_for_function(f"() => document.getElementById('place')?.textContent === '{number} of 20'")
            page.locator('.choices [value="left"]').click()
            page.wait_for_function("() => !document.querySelector('.choices .picked')")
        page.wait_for_url("**/votes?*")
        serving.send_signal(signal.SIGINT)
        said = serving.communicate(timeout=LONG)[0]
    finally:
        serving.kill()
    assert "20 pairs in preferences.jsonl (0 votes of a tie" in said and "prompts.train=preferences.jsonl" in said
    pairs, notes = read_prompts(str(tmp_path / "preferences.jsonl"))
    assert {one.text for one in pairs} == set(PROMPTS) and "preferred the left image in 20 of 20 votes" in " ".join(
        notes
    )
    sides = [{one.pair.winner.split("/")[-2], one.pair.loser.split("/")[-2]} for one in pairs]
    assert all(side == {"seed-1", "seed-2"} for side in sides)
    recipe = diffrl.load_config(
        "configs/tiny-sd3/dpo.yaml",
        [
            *(f"model.path={random_sd3}", f"run.dir={tmp_path}", f"prompts.train={tmp_path}/preferences.jsonl"),
            *("run.iterations=2", "train.warmup_updates=0", "eval.samples=4", "eval.steps=2", "model.device=cpu"),
        ],
    )
    with undrawn():
        run = diffrl.train(recipe, quiet=True)
    assert run.metrics()[-1]["update/evaluated"] == 16 * 2 * 4


def take(tmp_path, monkeypatch, *paths, votes="votes.jsonl", **options):
    said = []
    monkeypatch.setattr("diffrl.gallery.command.serve", lambda *args: None)
    request = GalleryRequest(list(paths), votes=tmp_path / votes, browser=False, port=0, **options)
    take_votes(request, tmp_path / "preferences.jsonl", said.append)
    return said


def test_votes_on_other_images_are_kept_out_and_told(tmp_path, monkeypatch, served):
    one, other = (make_run(tmp_path / "runs" / name, prompts=["a", "b"], roots=1) for name in ("one", "other"))
    assert take(tmp_path, monkeypatch, one)[-1].startswith("No vote prefers one of two exact images, so ")
    lines = []
    for run in (one, other):
        side = {"source": run.name, "path": str(run.resolve()), "picture": "x.png", "rewards": {}, "lower": []}
        a, b = (side | {"state": state, "sample": ["a", 0, 0, 0, ""], "picture": f"{state}.png"} for state in "ab")
        vote = {"id": run.name, "time": "2026-01-01", "voter": "eva", "session": "s", "prompt": "a", "a": a, "b": b}
        lines.append(json.dumps(vote | {"left": "a", "choice": "b"}) + "\n")
    (tmp_path / "votes.jsonl").write_text("".join(lines))
    monkeypatch.setattr("diffrl.gallery.preferences._is_reduced", lambda vote: False)
    said = take(tmp_path, monkeypatch, one)
    assert "1 pair in" in said[0] and "1 vote on other images" in said[0]
    (row,) = map(json.loads, (tmp_path / "preferences.jsonl").read_text().splitlines())
    assert (row["prompt"], row["chosen"], row["label_0"]) == ("a", str(one.resolve() / "b.png"), 0)
    with pytest.raises(ConfigError, match="which does not exist"):
        load_prompts(str(tmp_path / "preferences.jsonl"))


def test_a_vote_needs_something_to_compare_and_a_place(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="name a run, or two folders"):
        take(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="Votes are taken by a live gallery"):
        take(tmp_path, monkeypatch, tmp_path, export=tmp_path / "site")
    for out, words in (
        (tmp_path, "--out takes a file that ends in .jsonl"),
        (tmp_path / "pairs.txt", "--out takes a file that ends in .jsonl"),
        (tmp_path / "none" / "pairs.jsonl", "in a folder that is there"),
        (tmp_path / "votes.jsonl", "--out and --votes take two files"),
    ):
        with pytest.raises(ConfigError, match=words):
            take_votes(GalleryRequest([tmp_path], votes=tmp_path / "votes.jsonl"), out, print)
