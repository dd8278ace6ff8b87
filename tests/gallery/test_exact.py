"""Who judges in the gallery judges images with their own pixels, of samples that stand for all."""

import json
import random

import pytest
import torch

from diffrl.gallery.columns import first_and_last
from diffrl.gallery.pages.vote import Ballots
from diffrl.gallery.runs import RunSource
from diffrl.gallery.votes import add_vote, side_of
from diffrl.tracking.store import SampleStore, StoredSample
from tests.gallery.made import CONFIG
from tests.tracking.evaluated import LAST, SAMPLES, evaluate, image


@pytest.fixture
def run(tmp_path):
    made = tmp_path / "made"
    evaluate(made, 0, [0.5] * SAMPLES)
    evaluate(made, 10, LAST)
    (made / "config.yaml").write_text(CONFIG)
    return made


def begin(run):
    columns = first_and_last(RunSource("made", run)).columns
    return Ballots(random.Random(1)).begin(columns[0], columns[-1])


def test_a_ballot_compares_own_pixels_of_samples_that_stand_for_all(run):
    ballot = begin(run)
    assert {pair.prompt for pair in ballot.pairs} == {f"prompt {g}" for g in (0, 3, 6, 9)}
    assert ballot.left_out == SAMPLES - 4
    with SampleStore.open_readonly(run) as store:
        for pair in ballot.pairs:
            files = [StoredSample("eval", 0, 0, 0, 7, "", file=pair.samples[letter].file) for letter in ("a", "b")]
            original = image(int(pair.prompt.split()[1]), 128)
            assert all(torch.equal(store.picture(one), original) for one in files)


def test_votes_on_small_copies_are_no_preference_pairs(run, client_of, tmp_path):
    """Such votes were given before ballots left these pairs out."""
    source = RunSource("made", run)
    states = source.states()
    samples = [source.samples(state, [brief.id for brief in source.briefs(state, None)]) for state in states]
    pairs = [(a, b) for a, b in zip(*samples, strict=True) if a.file and b.file]
    assert len(pairs) == 8
    for a, b in pairs:
        add_vote(
            tmp_path / "votes.jsonl", "", "s", side_of(source, states[0], a), side_of(source, states[1], b), "a", "a"
        )
    lines = client_of(run).get("/preferences.jsonl").text.splitlines()
    assert {json.loads(line)["prompt"] for line in lines} == {f"prompt {g}" for g in (0, 3, 6, 9)}
