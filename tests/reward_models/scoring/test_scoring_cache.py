"""Nothing is scored twice, nothing stale is reused, and an interrupted run goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reward_models import RewardBatch, ScorerSpec, load_reward
from reward_models.images.shapes import ShapesScorer
from reward_models.media import to_pil
from reward_models.scoring.cache import Score, ScoreCache, failure
from reward_models.scoring.choices import Loaded
from reward_models.scoring.identity import can_be_cached, scorer_facts
from reward_models.self_test import noise
from reward_models.settings import RewardSettings
from tests.patience import LONG, until


@pytest.fixture
def scored(score, tmp_path):
    """Score and tell how many samples the scorer was given."""

    def run(*arguments: object) -> int:
        log = tmp_path / "log.txt"
        before = len(log.read_text().splitlines()) if log.exists() else 0
        done = score(*arguments, "--option", f"log={tmp_path / 'log'}")
        assert done.code == 0, done.err
        return len(log.read_text().splitlines()) - before if log.exists() else 0

    return run


def forget(module: str) -> None:
    """As a new process: the module is imported anew."""
    sys.modules.pop(module, None)


def test_only_what_changed_is_scored_again(scored, counting, pictures, tmp_path):
    name = counting("mine_changes")
    command = [pictures, "--reward", name]
    assert scored(*command) == 5
    assert scored(*command) == 0
    assert scored(*command, "--batch-size", "1") == 0
    (pictures / "1.txt").write_text("another prompt")
    assert scored(*command) == 1
    (pictures / "2.png").write_bytes((pictures / "0.png").read_bytes())
    assert scored(*command) == 1
    assert scored(*command, "--option", "factor=2") == 5
    assert scored(*command, "--option", "factor=1.0") == 0  # the default, said aloud
    assert scored(*command, "--prompt", "p") == 4  # 0.png and 2.png are equal now
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("\n".join(json.dumps({"file": f"{n}.png", "prompt": "p", "tag": n % 2}) for n in range(5)))
    assert scored(*command, "--prompts", prompts) == 4
    pictures.rename(pictures.with_name("moved"))
    assert scored(pictures.with_name("moved"), *command[1:], "--prompts", prompts) == 0


def test_a_new_version_and_new_source_are_scored_again(scored, counting, pictures):
    name = counting("mine_versions")
    assert scored(pictures, "--reward", name) == 5
    counting("mine_versions", version="2")
    forget("mine_versions")
    assert scored(pictures, "--reward", name) == 5
    counting("mine_versions", version="2", before="pass")
    forget("mine_versions")
    assert scored(pictures, "--reward", name) == 5
    forget("mine_versions")
    assert scored(pictures, "--reward", name) == 0


def test_a_reward_of_ones_own_that_counts_no_version_may_depend_on_anything(score, counting, pictures, tmp_path):
    """Such as a file that no option names; beside it a registered reward is known."""
    tone = tmp_path / "tone.txt"
    uses = f"self.factor = float(Path({str(tone)!r}).read_text())"
    name = counting("mine_reading", version=ScorerSpec.version, before=uses)
    command = [pictures, "--reward", name, "--reward", "shapes", "--option", f"{name}.log={tmp_path / 'log'}", "--json"]
    means = []
    for factor in (1, 2):
        tone.write_text(str(factor))
        means.append(score(*command).summary["rewards"])
    assert means[1][name]["mean"] == pytest.approx(2 * means[0][name]["mean"])
    assert means[1][name]["cached"] == 0 and means[1]["shapes"]["cached"] == 5


def test_a_reward_that_an_option_gives_another_is_not_known(monkeypatch, counting):
    own = counting("mine_inside")
    for options, expected in (
        ({}, True),
        ({"reward": "shapes"}, True),
        ({"reward": own}, False),
        ({"a": "http://b:80/c"}, True),
    ):
        scorer = SimpleNamespace(spec=load_reward("shapes").spec)
        assert can_be_cached(Loaded(RewardSettings(name="video_mean", options=options), scorer, 1)) is expected


@pytest.mark.parametrize(
    ("column", "value"),
    [("raw", "no json"), ("parts", "[1]"), ("parts", '{"p": "x"}'), ("parts", "[" * 9999), ("note", b"\xff")],
)
def test_a_damaged_row_is_scored_again(score, pictures, tmp_path, column, value):
    command = [pictures, "--reward", "shapes", "--json"]
    first = score(*command).summary["rewards"]["shapes"]
    with sqlite3.connect(tmp_path / "cache/diffrl/scores.sqlite") as database:
        database.execute(f"UPDATE scores SET {column} = ?", (value,))
    second = score(*command).summary["rewards"]["shapes"]
    assert (second["cached"], second["mean"]) == (0, first["mean"])
    assert score(*command).summary["rewards"]["shapes"]["cached"] == 5


def test_a_new_version_of_a_registered_reward_is_scored_again(score, pictures, monkeypatch):
    command = [pictures, "--reward", "shapes", "--json"]
    assert [score(*command).summary["rewards"]["shapes"]["cached"] for _ in range(2)] == [0, 5]
    monkeypatch.setattr(ShapesScorer, "spec", dataclasses.replace(ShapesScorer.spec, version="next"))
    assert [score(*command).summary["rewards"]["shapes"]["cached"] for _ in range(2)] == [0, 5]


def test_one_more_or_less_in_a_group_makes_all_of_it_new(score, rows, tmp_path):
    media = [noise(12, seed=seed) for seed in range(4)]
    folder, cached = tmp_path / "in", []
    folder.mkdir()
    command = [folder, "--reward", "diversity", "--out", tmp_path / "s.jsonl", "--json"]
    for members in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3]):
        for number in range(4):
            if number in members:
                to_pil(media[number]).save(folder / f"{number}.png")
            else:
                (folder / f"{number}.png").unlink(missing_ok=True)
        cached.append(score(*command).summary["rewards"]["diversity"]["cached"])
        count = len(members)
        batch = RewardBatch(torch.stack([media[i] for i in members]), [""] * count, (), None, [0] * count)
        found = [row["rewards"]["diversity"]["raw"] for row in rows(tmp_path / "s.jsonl")]
        assert found == pytest.approx(load_reward("diversity")(batch).raw.tolist(), rel=1e-6)
    assert cached == [0, 0, 4, 0]


@pytest.mark.parametrize("folder", [False, True])
def test_other_weights_are_scored_again(scored, counting, pictures, tmp_path, folder):
    weights = tmp_path / "weights" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_text("one")
    command = [pictures, "--reward", counting("mine_weights")]
    option = ["--option", f"weights={weights.parent if folder else weights}"]
    assert [scored(*command), scored(*command, *option), scored(*command, *option)] == [5, 5, 0]
    weights.write_text("other")
    assert [scored(*command, *option), scored(*command, *option)] == [5, 0]
    os.utime(weights, ns=(1, 1))
    assert scored(*command, *option) == 0


def test_prompts_that_do_not_matter_change_nothing(scored, counting, pictures):
    command = [pictures, "--reward", counting("mine_blind", uses_prompt=False)]
    assert [scored(*command), scored(*command, "--prompt", "other")] == [5, 0]


def test_the_cache_can_be_elsewhere_or_nowhere(scored, counting, pictures, tmp_path):
    command = [pictures, "--reward", counting("mine_places")]
    assert [scored(*command, "--no-cache"), scored(*command, "--no-cache")] == [5, 5]
    assert not (tmp_path / "cache").exists()
    own = ["--cache", tmp_path / "own" / "c.sqlite"]
    assert [scored(*command, *own), scored(*command, *own), scored(*command)] == [5, 0, 5]
    assert (tmp_path / "own/c.sqlite").is_file() and (tmp_path / "cache/diffrl/scores.sqlite").is_file()


def test_failures_are_tried_again(score, pictures):
    whole = (pictures / "0.png").read_bytes()
    (pictures / "0.png").write_bytes(whole[:100])
    command = [pictures, "--reward", "shapes", "--json"]
    first, second = (score(*command).summary["rewards"]["shapes"] for _ in range(2))
    assert (first["failed"], first["cached"], second["failed"], second["cached"]) == (1, 0, 1, 4)
    (pictures / "0.png").write_bytes(whole)
    third = score(*command).summary["rewards"]["shapes"]
    assert (third["failed"], third["cached"]) == (0, 4)
    assert third["mean"] == score(*command, "--no-cache").summary["rewards"]["shapes"]["mean"]


def test_cached_rows_are_the_rows_that_were_made(score, pictures, rows, tmp_path):
    command = [pictures, "--reward", "shapes", "--reward", "jpeg_compressibility"]
    for name in ("first", "second"):
        assert score(*command, "--out", tmp_path / f"{name}.jsonl").code == 0
    assert rows(tmp_path / "first.jsonl") == rows(tmp_path / "second.jsonl")


def test_what_is_no_cache_is_refused(refused, pictures, tmp_path):
    command = [pictures, "--reward", "shapes", "--cache"]
    (tmp_path / "text").write_text("not a database at all, but long enough to look at " * 50)
    assert "--no-cache" in refused(*command, tmp_path / "text")
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE mine (x)")
    assert "no cache of scores" in refused(*command, tmp_path / "other.sqlite")
    assert "cannot be used" in refused(*command, tmp_path / "text" / "below")


def test_unknown_parts_survive_and_failures_are_not_kept(tmp_path):
    with ScoreCache(tmp_path / "c.sqlite") as cache:
        cache.put("x 1", [("a", Score(0.1, {"p": float("nan"), "q": 2.0})), ("b", failure("no"))])
    with ScoreCache(tmp_path / "c.sqlite") as cache:
        found = cache.get("a")
        assert found is not None and found.raw == 0.1 and found.parts["q"] == 2.0
        assert found.parts["p"] != found.parts["p"] and cache.get("b") is None


@pytest.mark.long
def test_an_interrupted_run_goes_on_where_it_stopped(counting, pictures, tmp_path):
    for number in range(5, 30):
        picture = pictures / f"{number:02d}.png"
        picture.write_bytes((pictures / "0.png").read_bytes() + bytes([number]))  # PNG readers stop before it
        picture.with_suffix(".txt").write_text(f"prompt {number}")
    log, out, wait = tmp_path / "log.txt", tmp_path / "s.jsonl", tmp_path / "wait"
    wait.touch()
    full = "self.log.exists() and len(self.log.read_text().splitlines()) >= 12"
    hold = f"import time\n        while {full} and Path({str(wait)!r}).exists(): time.sleep(0.01)"
    name = counting("slow", before=hold)  # it comes no further before it is interrupted
    command = [sys.executable, "-m", "reward_models", "score", str(pictures), "--reward", name, "--batch-size", "2"]
    command += ["--option", f"log={tmp_path / 'log'}", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{tmp_path}"}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: first.poll() is not None or log.exists() and len(log.read_text().splitlines()) >= 12)
    first.send_signal(signal.SIGINT)
    told = first.communicate(timeout=LONG)[1]
    assert first.returncode == 130 and "run the same command again" in told and "Traceback" not in told
    seen = len(log.read_text().splitlines())
    assert 12 <= seen < 30 and not out.exists()
    wait.unlink()
    second = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=LONG)
    assert second.returncode == 0, second.stderr
    again = len(log.read_text().splitlines())
    assert 30 <= again <= 32  # at most the batch under way was scored twice
    assert json.loads(second.stdout)["rewards"][name]["cached"] >= seen - 2
    assert len(out.read_text().splitlines()) == 30 and not out.with_name("s.jsonl.part").exists()


def test_other_weights_on_the_hub_are_another_scorer(tmp_path, monkeypatch):
    """A newer commit in the local cache: known scores are not those of its weights, and a run says so when resumed."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    spec = SimpleNamespace(name="pickscore", version=1, weights="yuvalkirstain/PickScore_v1")
    reference = tmp_path / "models--yuvalkirstain--PickScore_v1" / "refs" / "main"
    facts = [scorer_facts("pickscore", {}, spec)]
    reference.parent.mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        reference.write_text(commit)
        facts.append(scorer_facts("pickscore", {}, spec))
    assert len({str(one) for one in facts}) == 3
