"""A scorer's reasons in words reach whoever asked, as short lines, through every way that a score takes."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict

import pytest
import torch

from reward_models import RewardBatch, check_scorer, load_reward, score_media
from reward_models.asking import ask
from reward_models.base import ScorerSpec, WithoutWeights, output_of_rows
from reward_models.common.errors import BrokenScorerError, RewardError
from reward_models.common.messages import LONGEST_NOTE, brief
from reward_models.scoring.cache import Score, ScoreCache
from reward_models.serving.server import background
from reward_models.serving.wire import decode_output, encode_output


class Telling(WithoutWeights):
    """The first pixel; says what it is unless it is 0. `words` takes the place of what it says."""

    def __init__(self, words=None, media=("image",)):
        self.words = words
        self.spec = ScorerSpec("telling", "The first pixel.", (0.0, 255.0), media=media, uses_prompt=False)

    def __call__(self, batch):
        self.spec.require(batch)
        values = [int(pixel) for pixel in batch.media.flatten(1)[:, 0]]
        notes = [f"it is {value}" if value else None for value in values] if self.words is None else self.words
        return output_of_rows([(float(value), {}, None) for value in values], (), notes)


def of(*values):
    pictures = torch.stack([torch.full((3, 5, 7), value, dtype=torch.uint8) for value in values])
    return RewardBatch(pictures, ["p"] * len(values))


def test_a_note_is_one_short_printable_line():
    hostile = "left\n\tof: \x1b[31mwrong\u202e \ud800" + "x" * 10**6
    said = ask(Telling([hostile, None, "  \n "]), of(1, 2, 3), "telling").notes
    assert said[0].startswith("left of: [31mwrong xx") and len(said[0]) == LONGEST_NOTE and said[0].endswith("...")
    assert said[0].isprintable() and said[1:] == [None, None]
    assert ask(Telling([None, "", None]), of(1, 2, 3), "telling").notes == ()
    assert brief("größe 日本") == "größe 日本"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["a"], "`notes` must have 2 entries. Got 1"), (["a", 3], "`notes` must be text or None. Got 3")],
)
def test_notes_of_another_shape_are_one_sentence(words, sentence):
    with pytest.raises(BrokenScorerError, match=sentence):
        ask(Telling(words), of(1, 2), "telling")
    assert any("notes" in problem for problem in check_scorer(Telling(words)))
    assert check_scorer(Telling()) == []


def test_pictures_of_several_sizes_keep_their_notes():
    media = [torch.full((3, side, side), value, dtype=torch.uint8) for value, side in ((7, 5), (0, 9), (8, 5), (9, 9))]
    assert score_media(Telling(), media, ["p"] * 4).notes == ["it is 7", None, "it is 8", "it is 9"]


def test_a_server_passes_them_on_in_the_order_of_the_samples():
    with background({"telling": Telling(), "silent": Telling([])}, max_batch=2, max_wait_ms=0) as url:
        batch = of(3, 0, 5, 6, 0, 8, 9)
        assert load_reward("remote", url=url, reward="telling", chunk=3)(batch).notes == Telling()(batch).notes
        assert load_reward("remote", url=url, reward="silent", chunk=3)(batch).notes == ()


def test_servers_and_clients_of_before_there_were_notes_are_understood():
    output = Telling()(of(1, 0))
    sent = json.loads(encode_output(output, "1"))
    assert decode_output(json.dumps(sent).encode(), 2)[0].notes == ["it is 1", None]
    old = {key: value for key, value in sent.items() if key != "notes"}
    assert decode_output(json.dumps(old).encode(), 2)[0].notes == ()
    sent["notes"] = ["x\n" * 10**4, None]
    assert len(decode_output(json.dumps(sent).encode(), 2)[0].notes[0]) == LONGEST_NOTE
    sent["notes"] = ["only one"]
    with pytest.raises(ValueError, match="an entry in every list"):
        decode_output(json.dumps(sent).encode(), 2)


def test_of_a_clip_it_is_said_once_or_frame_by_frame(monkeypatch):
    mean = load_reward("video_mean", reward="sharpness", frames=3)
    mean.scorer = Telling()
    clips = torch.full((3, 5, 3, 5, 7), 4, dtype=torch.uint8)
    clips[1, 2], clips[1, 4], clips[2] = 6, 0, 0
    assert mean(RewardBatch(clips, ["p"] * 3, fps=8.0)).notes == ["it is 4", "frame 0: it is 4; frame 2: it is 6", None]


def test_known_scores_keep_their_notes_and_older_caches_are_refused(tmp_path):
    path = tmp_path / "scores.sqlite"
    with sqlite3.connect(path) as old:
        old.execute("CREATE TABLE scores (key TEXT PRIMARY KEY, reward TEXT, raw REAL, parts TEXT) WITHOUT ROWID")
        old.execute("PRAGMA user_version = 1")
    with pytest.raises(RewardError, match="no cache of scores that this version reads. Give another file to --cache"):
        ScoreCache(path)
    for _ in range(2):
        with ScoreCache(tmp_path / "new.sqlite") as cache:
            cache.put("r 1", [("b", Score(0.25, {"p": 1.0}, note="why"))])
            assert asdict(cache.get("b")) == {"raw": 0.25, "parts": {"p": 1.0}, "error": None, "note": "why"}
